// hawser generate: a model goes on from a prompt.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/exit.h"
#include "cli/line.h"
#include "cli/ranks.h"
#include "models/families.h"
#include "train/generate.h"

namespace hawser::cli {
namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";  // U+FFFD: bytes that are no character, or not yet

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

}  // namespace

int generate(const GenerateOptions& options) {
  Recipe base;
  base.model.path = options.model;
  const Recipe recipe = recipe_without_file(base, options.common);
  if (const int world = world_size(options.common, std::max(1, recipe.run.ranks)); world > 1) {
    throw UserError(Problem{
        .what = "generate runs on one rank", .expected = "1", .got = cat(world), .at = "--ranks", .hint = "--ranks 1"});
  }
  Problems problems;
  auto input = train::open_generation({.model = options.model,
                                       .prompt = options.prompt,
                                       .prompt_ids = options.prompt_ids,
                                       .max_tokens = options.max_tokens,
                                       .recipe = recipe,
                                       .threads = threads_of(recipe),
                                       .device = device_of(recipe, 1)},
                                      problems);
  problems.throw_if_any();
  if (!input->open.skipped.empty()) say("passed over: ", input->open.skipped.lines());
  const std::string beyond = models::beyond_positions(
      input->open.model->description(), static_cast<std::int64_t>(input->prompt_ids.size()) + options.max_tokens);
  if (!beyond.empty()) say("warning: ", beyond);
  const data::Tokenizer* tokenizer = input->tokenizer.get();
  const bool as_text = tokenizer != nullptr && !options.common.json;
  const auto text_of = [&](const std::vector<std::int32_t>& ids) { return tokenizer->decode(ids, true); };

  // Text is shown as it comes, up to the last whole character.
  std::vector<std::int32_t> ids = input->prompt_ids;
  std::string shown;
  const auto show = [&](bool end) {
    const std::string text = text_of(ids);
    std::size_t size = text.size();
    while (!end && size >= 3 && text.compare(size - 3, 3, kReplacement) == 0) size -= 3;
    if (size <= shown.size()) return;
    std::fwrite(text.data() + shown.size(), 1, size - shown.size(), stdout);
    std::fflush(stdout);
    shown = text.substr(0, size);
  };
  // The prompt comes with the first token: by then nothing can be refused any more.
  const train::Generation generation = train::generate(*input, [&](std::int32_t id) {
    ids.push_back(id);
    if (as_text) show(false);
  });
  if (as_text) {
    show(true);
    std::puts("");
  }
  for (const std::string& note : generation.notes) say("", note);
  if (as_text) return 0;
  if (options.common.json) {
    nlohmann::ordered_json json{
        {"prompt_ids", input->prompt_ids}, {"ids", generation.ids}, {"ended", generation.ended}};
    if (tokenizer != nullptr) json["text"] = text_of(generation.ids);
    std::puts(json.dump().c_str());
    return 0;
  }
  std::string line;
  for (const std::int32_t id : generation.ids) line += cat(line.empty() ? "" : ",", id);
  std::puts(line.c_str());
  return 0;
}

void add_generate(CLI::App& app, const Commands& commands, Chosen& chosen) {
  const auto options = std::make_shared<GenerateOptions>();
  CLI::App* command = add_command(
      app,
      {.name = "generate",
       .what = "let a model go on from a prompt, always with the likeliest token",
       .examples = {"hawser generate --model models/SmolLM2-135M --prompt \"It is a truth\" --max-tokens 32",
                    "hawser generate --model DIR --prompt-ids 504,3,12 --max-tokens 8 --json"}},
      options->common);
  add_text(*command, "--model", "DIR", options->model,
           "a Hugging Face model folder, a checkpoint, or a run's folder (its last checkpoint)");
  add_parsed(*command, "--prompt", "TEXT", "text; one that begins with a dash goes as --prompt=TEXT",
             [options](const std::string& value) { options->prompt = value; });
  add_parsed(*command, "--prompt-ids", "IDS", "or token ids, as in 1,2,3",
             [options](const std::string& value) { options->prompt_ids = parse_ids(value); });
  add_number(*command, "--max-tokens", 1, kMostTokens, "tokens to add at most; default 64",
             [options](std::int64_t value) { options->max_tokens = value; });
  on_chosen(*command, [options, &commands, &chosen] {
    need(options->model, "--model", "generate");
    if (options->prompt && !options->prompt_ids.empty())
      throw UserError(Problem{.what = "generate: both --prompt and --prompt-ids", .expected = "one of the two"});
    need(options->prompt || !options->prompt_ids.empty() ? "given" : "", "--prompt or --prompt-ids", "generate");
    chosen = [options, &commands] { return commands.generate(*options); };
  });
}

}  // namespace hawser::cli
