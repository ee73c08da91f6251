// hawser recipe init: a commented recipe for a model.
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "autoconfig/propose.h"
#include "autoconfig/requested.h"
#include "base/error.h"
#include "base/hub_name.h"
#include "base/nearest.h"
#include "base/paths.h"
#include "base/text.h"
#include "cli/command_support.h"
#include "cli/commands.h"
#include "cli/doing.h"
#include "cli/exit.h"
#include "cli/line.h"
#include "cli/model_name.h"
#include "config/check_to_write.h"
#include "engine/output_place.h"
#include "io/files.h"
#include "io/result_file.h"
#include "plan/run_plan.h"
#include "plan/target.h"
#include "prepare/sources.h"
#include "prepare/validation_sets.h"

namespace hawser::cli {
namespace {

namespace fs = std::filesystem;

// The training data: the user's paths, those with a problem left out; else those in text/ of this folder; else none.
// Absolute, unless the recipe `stays` here.
std::vector<std::string> first_data(const std::vector<std::string>& named, bool stays, Problems& problems) {
  std::vector<std::string> out;
  for (const std::string& pattern : named) {
    Problems wrong;
    prepare::find_sources({pattern}, "", "", wrong);
    for (Problem problem : wrong.all()) {  // one pattern at a time: the index in the list is meaningless
      problem.at = "--data";
      if (problem.hint.empty()) problem.hint = nearest_file(pattern);
      if (problem.hint == pattern) problem.hint.clear();  // it exists, but is of another type
      problems.add(problem);
    }
    if (wrong.empty()) out.push_back(stays ? pattern : resolve_path(pattern, ""));
  }
  if (!named.empty()) return out;
  if (!io::is_folder("text")) return {};
  for (const char* pattern : {"text/*.jsonl", "text/*.txt"}) {
    Problems none;
    if (prepare::find_sources({pattern}, "", "", none).empty()) continue;
    return {stays ? pattern : absolute_path(pattern)};
  }
  return {};
}

// The recipe from the command line: fine-tuning from a folder, random weights from a config.json. Without a model if
// there is none.
Recipe first_recipe(const RecipeInitOptions& options, bool stays, Problems& problems) {
  const std::string model = find_model(options.model, options.common, hub::Parts::all);
  const fs::path path = absolute_path(model);
  const bool folder = io::is_folder(path);
  const auto hub = hub_name_of(model);
  if (!io::exists(path)) {
    Problem missing = hub ? not_downloaded(*hub, model)
                          : Problem{.file = model,
                                    .what = "no such model",
                                    .expected = "a model folder or a config.json",
                                    .hint = nearest_file(model)};
    missing.at = "--model";
    problems.add(missing);
  }
  const fs::path named = folder ? (path.has_filename() ? path : path.parent_path()) : path.parent_path();
  Recipe recipe;
  recipe.name = (hub ? fs::path(hub->model) : named).filename().string() + (folder ? "-tuned" : "-scratch");
  // Two recipes for a model in one folder must not share the output of their runs.
  const std::string stem = fs::path(options.output).stem().string();
  if (!stem.empty() && stem != "recipe") recipe.name = stem;
  for (const std::string& set : options.common.overrides) {  // the output folder is named after it
    if (set.starts_with("name=") && set.size() > 5) recipe.name = set.substr(5);
  }
  if (io::exists(path)) {
    (folder ? recipe.model.path : recipe.model.config) = stays ? model : (folder ? named : path).string();
  }
  recipe.folder = fs::path(options.output).parent_path().string();
  recipe.data.train = first_data(options.data, stays, problems);
  recipe.train.steps = 1000;  // required by the schema; chosen later
  recipe.data.sequence_length = 2;
  recipe.output = "runs/" + recipe.name;
  return recipe;
}

// What the options say, with --set and the options of all commands applied. Problems are added.
Recipe requested_recipe(const RecipeInitOptions& options, bool stays, Problems& problems) {
  const Recipe first = first_recipe(options, stays, problems);
  Recipe recipe =
      recipe_without_file(first, options.common, /*runs=*/options.target.empty(), /*keep_relative=*/stays, problems);
  const bool has_model = !first.model.path.empty() || !first.model.config.empty();
  if (!has_model) recipe.rejected.insert({"model.path", "model.config"});
  // The options gave the values of keys that --set does not give.
  if (has_model) recipe.places.try_emplace(first.model.path.empty() ? "model.config" : "model.path", "--model");
  if (!options.data.empty() && !recipe.data.train.empty()) recipe.places.try_emplace("data.train", "--data");
  if (recipe.output.empty() && accepted(recipe, {"output"})) {
    problems.add({.file = "--set", .what = "missing key", .at = "output", .hint = "output: runs/NAME"});
    recipe.rejected.insert("output");
  }
  return recipe;
}

// The recipe must not replace what it is made from.
void check_output(const RecipeInitOptions& options, const Recipe& recipe, Problems& problems) {
  std::vector<engine::Input> inputs = {{"--model", recipe.model.path}, {"--model", recipe.model.config}};
  inputs.push_back({"--target", options.target});
  const auto add = [&](const std::string& option, const std::vector<prepare::Source>& sources) {
    for (const prepare::Source& source : sources) {
      const bool tokens = source.kind == prepare::SourceKind::tokens;
      for (const char* ending : {"", ".bin", ".idx"}) {
        if (tokens != (*ending == '\0')) inputs.push_back({option, source.path + ending});
      }
    }
  };
  Problems ignored;
  add(options.data.empty() ? "data.train" : "--data",
      prepare::find_sources(recipe.data.train, recipe.folder, "", ignored));
  add("data.validation", prepare::find_validation(plan::validation_sets_of(recipe.data), recipe.folder, ignored));
  engine::check_output(options.output, "--output", inputs, problems);
}

}  // namespace

int recipe_init(const RecipeInitOptions& options) {
  Problems problems;
  check_not_overwritten(options.output, options.force, problems);
  const bool stays = written_here(options.output);
  const Recipe requested = requested_recipe(options, stays, problems);
  check_output(options, requested, problems);
  if (!options.target.empty()) {
    try {
      check_target_device(requested, plan::load_target(options.target), problems);
    } catch (const UserError&) {
      // check_requested() or propose() reports it
    }
  }
  autoconfig::check_requested(requested, options.target, problems);
  problems.throw_if_any();
  const plan::Target target = autoconfig::choose_target(requested, options.target, autoconfig::usable_gpus(requested));
  if (target.never_run) print("", plan::kNeverRun);
  const autoconfig::Proposal proposal = [&] {
    const Doing doing("choosing settings");
    return autoconfig::propose(requested, options.target);
  }();
  Recipe recipe = proposal.recipe;
  // With its commit, and without the cache's folder, which is another one on other machines.
  const auto hub = parse_hub_name(options.model) ? hub_name_of(recipe.model.path) : std::nullopt;
  if (hub) recipe.model.path = hub->text();
  RecipeNotes notes = proposal.notes;
  notes.chosen_only = options.only_chosen;
  const std::string text = options.common.json ? recipe_json(recipe) : commented_recipe(recipe, notes);
  const std::string path = options.output.empty() ? "the recipe" : options.output;
  check_recipe_to_write(recipe, text, path, Purpose::plan);
  if (!recipe.data.train.empty()) check_recipe_to_write(recipe, text, path, Purpose::prepare);
  if (recipe.data.train.empty()) print("warning: ", "no training data: put text into text/, or set data.train");
  if (!proposal.few.empty()) {
    print("warning: ",
          cat("little data: ", proposal.few, ", which teach little; try more data or --set train.steps=20"));
  }
  for (const std::string& note :
       prepare::left_out_of_folders(recipe.data.train, recipe.folder, recipe.data.validation.empty())) {
    print("", note);
  }
  if (options.output.empty()) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    return 0;
  }
  io::write_result(options.output, text);
  print("", cat("wrote ", options.output, ": ", proposal.summary));
  // A plan without --target is for this machine's GPU, or for H200.
  const bool other = !options.target.empty() && options.target != plan::target_of(DeviceKind::cuda) && target.cuda;
  print("", cat("next: hawser plan ", shell_quoted(options.output),
                other ? " --target " + shell_quoted(options.target) : std::string(), ", hawser fit ",
                shell_quoted(options.output)));
  return 0;
}

void add_recipe(CLI::App& app, const Commands& commands, Chosen& chosen) {
  CLI::App* recipe = add_family(app, "recipe", "write recipes: recipe init, recipe convert");
  const auto options = std::make_shared<RecipeInitOptions>();
  CLI::App* command = add_command(
      *recipe,
      {.name = "init",
       .what = "write a commented recipe for a model, its data and this machine\n"
               "Chooses ranks, sequence length, batch, sharding and activation checkpointing by planning, so that "
               "`hawser plan`, `prepare` and `fit` accept the recipe unchanged; comments give the reason of each "
               "choice. Keeps the values of --set, --ranks, --memory, --host-memory and --device. "
               "Data may be text, conversations, prompts with completions, or token ids; reads a sample "
               "of it. If nothing fits, prints settings that would fit and exits with 4.",
       .examples = {"hawser recipe init --model models/SmolLM2-135M --data books --output recipe.yaml",
                    "hawser recipe init --model config.json --set train.steps=500 > recipe.yaml",
                    "hawser recipe init --model models/Llama-3.1-8B --data chats.jsonl --target h200 "
                    "--ranks 8"},
       .json = "write the recipe as one JSON object, to --output or standard output"},
      options->common);
  add_text(*command, "--model", "PATH", options->model,
           "model folder, ORG/NAME in the Hugging Face cache, or config.json to train from scratch");
  set_completions(*command, "--model", {"models"});
  add_texts(
      *command, "--data", "PATH", options->data,
      "training data: .jsonl, .json, .csv, .tsv, .parquet or .txt file, folder, or token file; repeatable; default: "
      "text/*.jsonl or text/*.txt, if any");
  add_text(*command, "--output", "FILE", options->output, "file to write; default: standard output");
  add_switch(*command, "--force", options->force, "overwrite an existing --output");
  add_switch(*command, "--short", options->only_chosen,
             "write only the keys that are chosen, not those with their defaults");
  add_text(*command, "--target", "NAME", options->target,
           cat(joined(plan::shipped_targets(), ", "), ", or a file; default: this machine's").c_str());
  set_completions(*command, "--target", plan::shipped_targets());
  on_chosen(*command, [options, &commands, &chosen] {
    need(options->common, {{options->model, "--model"}}, "recipe init");
    chosen = [options, &commands] { return commands.recipe_init(*options); };
  });
  add_recipe_convert(*recipe, commands, chosen);
}

}  // namespace hawser::cli
