// hawser generate: its options.
#include <algorithm>
#include <charconv>
#include <limits>
#include <set>

#include "base/error.h"
#include "base/utf8.h"
#include "cli/commands.h"
#include "cli/line.h"

namespace hawser::cli {
namespace {

// "1,2,3"; spaces are allowed around the numbers.
std::vector<std::int64_t> parse_ids(const std::string& text) {
  std::vector<std::int64_t> ids;
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto skip = [&] {
    while (at < end && *at == ' ') ++at;
  };
  const Problem wrong{
      .what = "wrong value", .expected = "token ids", .got = text, .at = "--prompt-ids", .hint = "--prompt-ids 1,2,3"};
  for (bool more = true; more;) {
    skip();
    std::int64_t id = 0;
    const auto [stop, error] = std::from_chars(at, end, id);
    if (error != std::errc() || id < 0) throw UserError(wrong);
    ids.push_back(id);
    at = stop;
    skip();
    more = at < end && *at == ',';
    if (at < end) ++at;
  }
  if (at < end || text.back() < '0') throw UserError(wrong);
  return ids;
}

// `typed`: the names of the options on the command line.
void check(const GenerateOptions& options, const std::set<std::string>& typed, Problems& problems) {
  const auto is_there = [&](const char* name) { return typed.contains(name); };
  if (options.model.empty()) {
    problems.add({.what = "generate: --model is missing", .hint = "hawser generate --help"});
  }
  std::string sources;
  int count = 0;
  const auto source = [&](bool there, const char* name) {
    if (!there) return;
    sources += cat(sources.empty() ? "" : " and ", name);
    ++count;
  };
  source(options.prompt.has_value(), "--prompt");
  source(is_there("--prompt-ids"), "--prompt-ids");
  source(!options.prompts.empty(), "--prompts");
  source(options.chat, "--chat");
  constexpr const char* kSources = "--prompt, --prompt-ids, --prompts or --chat";
  if (count == 0) {
    problems.add({.what = "generate: a prompt is missing", .expected = kSources, .hint = "hawser generate --help"});
  }
  if (count > 1) problems.add({.what = cat("generate: both ", sources), .expected = cat("one of ", kSources)});
  const auto needs = [&](bool met, const char* name, const std::string& what) {
    if (!met && is_there(name)) problems.add({.what = cat("generate: ", name, " without ", what)});
  };
  for (const char* name : {"--batch", "--output"}) needs(!options.prompts.empty(), name, "--prompts");
  for (const char* name : {"--system", "--tools", "--context"}) needs(options.chat, name, "--chat");
  needs(options.chat || !options.prompts.empty(), "--chat-template", "--chat or --prompts");
  for (const char* name : {"--top-k", "--top-p", "--seed"}) {
    // Not reported if this option's value, or the temperature's, is wrong.
    const std::set<std::string>& wrong = options.common.rejected;
    needs(options.temperature > 0 || wrong.contains(name) || wrong.contains("--temperature"), name,
          "a --temperature above 0 (the default is greedy)");
  }
  if (std::find(options.stops.begin(), options.stops.end(), "") != options.stops.end()) {
    problems.add({.what = "an empty text", .at = "--stop"});
  }
  if (options.chat && options.common.json) problems.add({.what = "generate: --chat prints text only", .got = "--json"});
}

}  // namespace

void add_generate(CLI::App& app, const Commands& commands, Chosen& chosen) {
  const auto options = std::make_shared<GenerateOptions>();
  const auto typed = std::make_shared<std::set<std::string>>();
  CLI::App* command = add_command(
      app,
      {.name = "generate",
       .what = "generate text from one or more prompts, or chat",
       .examples = {"hawser generate --model models/SmolLM2-135M --prompt \"It is a truth\" --max-tokens 32",
                    "hawser generate --model runs/tuned --prompt \"It is\" --temperature 0.8 --top-p 0.95 --seed 7",
                    "hawser generate --model runs/tuned --prompts questions.jsonl --output answers.jsonl --batch 16",
                    "hawser generate --model runs/tuned --chat --system \"Answer in one sentence.\"",
                    "hawser generate --model DIR --prompt-ids 504,3,12 --max-tokens 8 --json"},
       .json = "print the answer as one JSON object; with --prompts, include the token ids"},
      options->common);
  const auto add = [&](const char* name, const char* takes, const char* help,
                       const std::function<void(const std::string&)>& store) {
    // NOLINTNEXTLINE(clang-analyzer-cplusplus.NewDeleteLeaks): std::function owns its copies
    add_parsed(*command, options->common, name, takes, help, [typed, name, store](const std::string& value) {
      typed->insert(name);
      store(value);
    });
  };
  const auto number = [&](const char* name, std::int64_t min, std::int64_t max, const char* help,
                          std::optional<std::int64_t> GenerateOptions::*field) {
    add(name, "N", help,
        [=](const std::string& value) { options.get()->*field = whole_number(name, value, min, max); });
  };
  add_text(
      *command, "--model", "DIR", options->model,
      "Hugging Face model folder, ORG/NAME in the Hugging Face cache, checkpoint, or run folder (its last checkpoint)");
  set_completions(*command, "--model", {"models"});
  add_switch(*command, "--best", options->best,
             "of a run folder: the checkpoint with the lowest validation loss in place of the last one");
  add_switch(*command, "--ema", options->ema, "the average of the run's weights (optimizer.ema) in their place");
  add_texts(*command, "--adapter", "DIR", options->adapters,
            "folder of a PEFT adapter on the model; repeatable, adapters add up");
  add("--prompt", "TEXT", "prompt text; use --prompt=TEXT if it begins with a dash",
      [options](const std::string& value) {
        options->prompt = value;  // first: after the error it is not reported as missing
        if (const std::size_t bad = find_invalid_utf8(value); bad != std::string::npos)
          throw UserError({.what = "not UTF-8", .at = cat("--prompt, byte ", bad), .hint = "iconv -t utf-8"});
      });
  add("--prompt-ids", "IDS", "prompt as token ids, as in 1,2,3",
      [options](const std::string& value) { options->prompt_ids = parse_ids(value); });
  add("--prompts", "FILE",
      "file of prompts: .jsonl with prompt, messages, instruction or input_ids, or .txt with one per line, also .gz or "
      ".zst; - "
      "is standard input, read as .jsonl; prints one JSON object per line",
      [options](const std::string& value) { options->prompts = value; });
  add_switch(*command, "--chat", options->chat,
             "chat: answer each line of standard input; the line /help lists the commands");
  number("--max-tokens", 1, kMaxTokens, "maximum tokens to generate; default 64, in a chat 512",
         &GenerateOptions::max_tokens);
  add_texts(*command, "--stop", "TEXT", options->stops, "stop before this text; repeatable");
  add("--temperature", "T", "sampling temperature; default 0: greedy",
      [options](const std::string& value) { options->temperature = real_number("--temperature", value, 0, 100); });
  number("--top-k", 1, kMaxTokens, "sample from the N most likely tokens", &GenerateOptions::top_k);
  add("--top-p", "P", "sample from the most likely tokens with total probability P",
      [options](const std::string& value) { options->top_p = real_number("--top-p", value, 1e-6, 1); });
  add("--seed", "N", "sampling seed; default 0", [options](const std::string& value) {
    options->seed =
        static_cast<std::uint64_t>(whole_number("--seed", value, 0, std::numeric_limits<std::int64_t>::max()));
  });
  number("--batch", 1, 4096, "prompts per batch; default: as many as fit, at most 8 (GPU: 32)",
         &GenerateOptions::batch);
  add("--output", "FILE",
      "file for the answers to --prompts, written when all are complete; Ctrl-C leaves those so far in FILE.part; "
      "default: standard output, each when complete",
      [options](const std::string& value) { options->output = value; });
  add("--system", "TEXT", "system message of a chat", [options](const std::string& value) { options->system = value; });
  add("--tools", "FILE", "JSON list of the tools that a chat may call; `/tool TEXT` gives a result",
      [options](const std::string& value) { options->tools = value; });
  number("--context", 2, kMaxTokens, "maximum tokens of a chat; default: the model's positions, at most 4096",
         &GenerateOptions::context);
  add("--chat-template", "NAME", "template name, .jinja file or tokenizer_config.json; default: the model's",
      [options](const std::string& value) { options->chat_template = value; });
  on_chosen(*command, [options, typed, &commands, &chosen] {
    Problems problems = options->common.problems;
    check(*options, *typed, problems);
    problems.throw_if_any();
    chosen = [options, &commands] { return commands.generate(*options); };
  });
}

}  // namespace hawser::cli
