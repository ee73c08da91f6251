// hawser generate: a model goes on from a prompt.
#include <charconv>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/line.h"

namespace hawser::cli {
namespace {

// The body: greedy tokens after the prompt, as text or, with --json, as ids and text.
int generate_here(const Recipe&, const GenerateOptions&) {
  not_in_this_build("generate");
}

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
  return generate_here(recipe_without_file(base, options.common), options);
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
  add_text(*command, "--model", "DIR", options->model, "a Hugging Face model folder, or a run's export");
  add_parsed(*command, "--prompt", "TEXT", "text; one that begins with a dash goes as --prompt=TEXT",
             [options](const std::string& value) { options->prompt = value; });
  add_parsed(*command, "--prompt-ids", "IDS", "or token ids, as in 1,2,3",
             [options](const std::string& value) { options->prompt_ids = parse_ids(value); });
  add_number(*command, "--max-tokens", 1, "tokens to add at most; default 64",
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
