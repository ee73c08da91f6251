// hawser recipe init: a commented recipe for a model.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/line.h"
#include "data/sources.h"

namespace hawser::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kUsualLength = 2048;

// The longest sequence the model was made for, from its config.json.
std::int64_t longest_sequence(const fs::path& config) {
  std::ifstream in(config);
  if (!in)
    throw UserError(Problem{.file = config.string(), .what = "no such file", .expected = "a model's config.json"});
  const auto json = nlohmann::json::parse(in, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) throw UserError(Problem{.file = config.string(), .what = "not a JSON object"});
  for (const char* key : {"max_position_embeddings", "n_positions"}) {
    const auto found = json.find(key);
    if (found != json.end() && found->is_number_integer() && found->get<std::int64_t>() > 1) return *found;
  }
  return kUsualLength;
}

// What a recipe that lies in `folder` should train on: the user's own words, absolute; else what lies in text/; none.
std::vector<std::string> first_data(const std::string& named, const std::string& folder) {
  Problems problems;
  if (!named.empty()) {
    data::find_sources({named}, "", "", problems);
    // One pattern only: its number in a list says nothing.
    for (Problem problem : problems.all()) {
      problem.at = "--data";
      throw UserError(problem);
    }
    return {data::resolve_path(named, "")};
  }
  for (const char* pattern : {"text/*.jsonl", "text/*.txt"}) {
    if (!data::find_sources({pattern}, folder, "", problems).empty()) return {pattern};
  }
  return {};
}

// Two documents at least: one of them can be held out.
bool can_hold_out(const std::vector<std::string>& patterns, const std::string& folder) {
  Problems ignored;
  const auto sources = data::find_sources(patterns, folder, "", ignored);
  return sources.size() != 1 || sources[0].kind == data::SourceKind::jsonl;
}

// A first recipe for the model: fine-tuning from a folder, random weights from a config.json.
Recipe first_recipe(const RecipeInitOptions& options) {
  const std::string& model = options.model;
  const fs::path path = fs::absolute(model).lexically_normal();
  const bool folder = fs::is_directory(path);
  if (!folder && !fs::exists(path))
    throw UserError(Problem{.file = model, .what = "no such model", .expected = "a model folder or a config.json"});
  const fs::path named = folder ? (path.has_filename() ? path : path.parent_path()) : path.parent_path();
  Recipe recipe;
  recipe.name = named.filename().string() + (folder ? "-tuned" : "-scratch");
  (folder ? recipe.model.path : recipe.model.config) = (folder ? named : path).string();
  const std::string home = fs::path(options.output).parent_path().string();
  recipe.data.train = first_data(options.data, home);
  recipe.data.validation_fraction = can_hold_out(recipe.data.train, home) ? 0.01 : 0.0;
  recipe.data.sequence_length = std::min(kUsualLength, longest_sequence(folder ? path / "config.json" : path));
  recipe.train.steps = 1000;
  recipe.train.global_batch_size = 8;
  recipe.optimizer.learning_rate = folder ? 2e-5 : 3e-4;
  recipe.checkpoint.every_steps = 200;
  recipe.output = "runs/" + recipe.name;
  return recipe;
}

}  // namespace

int recipe_init(const RecipeInitOptions& options) {
  Recipe recipe = recipe_without_file(first_recipe(options), options.common);
  if (!recipe.places.contains("optimizer.warmup_steps"))
    recipe.optimizer.warmup_steps = std::min<std::int64_t>(100, recipe.train.steps / 10);
  const std::string text = options.common.json ? recipe_json(recipe) : commented_recipe(recipe);
  if (options.output.empty()) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    return 0;
  }
  if (fs::exists(options.output))
    throw UserError(Problem{.file = options.output, .what = "is there already", .hint = "another --output"});
  std::ofstream out(options.output);
  out << text << std::flush;
  if (!out) throw UserError(Problem{.file = options.output, .what = "cannot be written"});
  return 0;
}

void add_recipe(CLI::App& app, const Commands& commands, Chosen& chosen) {
  CLI::App* recipe = add_family(app, "recipe", "write recipes: recipe init");
  const auto options = std::make_shared<RecipeInitOptions>();
  CLI::App* command =
      add_command(*recipe,
                  {.name = "init",
                   .what = "a commented recipe for a model, every key with its help",
                   .examples = {"hawser recipe init --model models/SmolLM2-135M --data books > recipe.yaml",
                                "hawser recipe init --model config.json --set train.steps=500 --output recipe.yaml"}},
                  options->common);
  add_text(*command, "--model", "PATH", options->model, "a model folder, or a config.json to train from scratch");
  add_text(*command, "--data", "PATH", options->data,
           "what to train on: a .jsonl or .txt file, a folder of them, or a token file; default: text/*.jsonl or "
           "text/*.txt, where there are any");
  add_text(*command, "--output", "FILE", options->output, "where to write it; default: standard output");
  on_chosen(*command, [options, &commands, &chosen] {
    need(options->model, "--model", "recipe init");
    chosen = [options, &commands] { return commands.recipe_init(*options); };
  });
}

}  // namespace hawser::cli
