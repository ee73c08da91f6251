// hawser generate: its options.
#include <algorithm>
#include <charconv>
#include <limits>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/line.h"

namespace hawser::cli {
namespace {

// "1,2,3"; spaces may stand around the numbers.
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
    more = at < end && *at++ == ',';
  }
  if (at < end || text.back() < '0') throw UserError(wrong);
  return ids;
}

// What was typed, besides its values.
struct Typed {
  Problems problems;  // of values
  std::vector<std::string> options;
  std::vector<std::string> wrong;  // options among them whose values are
};

void check(const GenerateOptions& options, const Typed& typed, Problems& problems) {
  const auto is_among = [](const std::vector<std::string>& names, const char* name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  const auto is_there = [&](const char* name) { return is_among(typed.options, name); };
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
    problems.add({.what = "generate: nothing to go on from", .expected = kSources, .hint = "hawser generate --help"});
  }
  if (count > 1) problems.add({.what = cat("generate: both ", sources), .expected = cat("one of ", kSources)});
  const auto needs = [&](bool met, const char* name, const std::string& what) {
    if (!met && is_there(name)) problems.add({.what = cat("generate: ", name, " without ", what)});
  };
  for (const char* name : {"--batch", "--output"}) needs(!options.prompts.empty(), name, "--prompts");
  for (const char* name : {"--system", "--context"}) needs(options.chat, name, "--chat");
  needs(options.chat || !options.prompts.empty(), "--chat-template", "--chat or --prompts");
  for (const char* name : {"--top-k", "--top-p", "--seed"}) {
    // Nothing is said of a value that is wrong already, nor because of one.
    needs(options.temperature > 0 || is_among(typed.wrong, name) || is_among(typed.wrong, "--temperature"), name,
          "a --temperature above 0: without it the likeliest token is taken");
  }
  if (std::find(options.stops.begin(), options.stops.end(), "") != options.stops.end()) {
    problems.add({.what = "an empty text", .at = "--stop"});
  }
  if (options.chat && options.common.json) problems.add({.what = "generate: --chat gives text", .got = "--json"});
}

}  // namespace

void add_generate(CLI::App& app, const Commands& commands, Chosen& chosen) {
  const auto options = std::make_shared<GenerateOptions>();
  const auto typed = std::make_shared<Typed>();
  CLI::App* command = add_command(
      app,
      {.name = "generate",
       .what = "let a model go on from a prompt, from many at once, or chat with it",
       .examples = {"hawser generate --model models/SmolLM2-135M --prompt \"It is a truth\" --max-tokens 32",
                    "hawser generate --model runs/tuned --prompt \"It is\" --temperature 0.8 --top-p 0.95 --seed 7",
                    "hawser generate --model runs/tuned --prompts questions.jsonl --output answers.jsonl --batch 16",
                    "hawser generate --model runs/tuned --chat --system \"Answer in one sentence.\"",
                    "hawser generate --model DIR --prompt-ids 504,3,12 --max-tokens 8 --json"},
       .json = "give the answer as one JSON object; with --prompts, whose answers are one each anyway, put the ids in"},
      options->common);
  // Values that are wrong are said together, with whatever else is.
  const auto add = [&](const char* name, const char* takes, const char* help,
                       const std::function<void(const std::string&)>& store) {
    add_parsed(*command, name, takes, help, [typed, name, store](const std::string& value) {
      typed->options.emplace_back(name);
      try {
        store(value);
      } catch (const UserError& error) {
        typed->wrong.emplace_back(name);
        typed->problems.add_lines(error.what());
      }
    });
  };
  const auto number = [&](const char* name, std::int64_t min, std::int64_t max, const char* help,
                          std::int64_t GenerateOptions::*field) {
    add(name, "N", help,
        [=](const std::string& value) { options.get()->*field = whole_number(name, value, min, max); });
  };
  add_text(*command, "--model", "DIR", options->model,
           "a Hugging Face model folder, a checkpoint, or a run's folder (its last checkpoint)");
  add("--prompt", "TEXT", "text to go on from; one that begins with a dash goes as --prompt=TEXT",
      [options](const std::string& value) { options->prompt = value; });
  add("--prompt-ids", "IDS", "or token ids, as in 1,2,3",
      [options](const std::string& value) { options->prompt_ids = parse_ids(value); });
  add("--prompts", "FILE",
      "or a file of them: .jsonl with prompt, messages or input_ids, or .txt with one a line, perhaps .gz or .zst; - "
      "is standard input, read as .jsonl; gives one JSON object a line",
      [options](const std::string& value) { options->prompts = value; });
  add_switch(*command, "--chat", options->chat,
             "or a conversation: answers each line of standard input; /reset forgets it, /exit ends");
  number("--max-tokens", 1, kMaxTokens, "tokens to add at most; default 64", &GenerateOptions::max_tokens);
  add_texts(*command, "--stop", "TEXT", options->stops, "end before this text; may be given again and again");
  add("--temperature", "T",
      "draw tokens: 1 as the model says, below more certain, above less; default 0: the likeliest",
      [options](const std::string& value) { options->temperature = real_number("--temperature", value, 0, 100); });
  number("--top-k", 1, kMaxTokens, "draw from the N likeliest", &GenerateOptions::top_k);
  add("--top-p", "P", "draw from the likeliest that together have this probability",
      [options](const std::string& value) { options->top_p = real_number("--top-p", value, 1e-6, 1); });
  add("--seed", "N", "of the draws; default 0", [options](const std::string& value) {
    options->seed =
        static_cast<std::uint64_t>(whole_number("--seed", value, 0, std::numeric_limits<std::int64_t>::max()));
  });
  number("--batch", 1, 4096, "prompts that run at once; default as many as fit, at most 8 (a GPU: 32)",
         &GenerateOptions::batch);
  add("--output", "FILE",
      "where the answers to --prompts go, in their order, when all are there; Ctrl-C leaves those so far in FILE.part; "
      "default standard output, each when it is there",
      [options](const std::string& value) { options->output = value; });
  add("--system", "TEXT", "what the model is told before a chat",
      [options](const std::string& value) { options->system = value; });
  number("--context", 2, kMaxTokens, "tokens of a chat at most; default the model's positions, at most 4096",
         &GenerateOptions::context);
  add("--chat-template", "NAME", "a named template, a .jinja file or a tokenizer_config.json; default the model's",
      [options](const std::string& value) { options->chat_template = value; });
  on_chosen(*command, [options, typed, &commands, &chosen] {
    Problems problems = typed->problems;
    check(*options, *typed, problems);
    problems.throw_if_any();
    chosen = [options, &commands] { return commands.generate(*options); };
  });
}

}  // namespace hawser::cli
