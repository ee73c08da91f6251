#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "config/check.h"
#include "config/config.h"
#include "engine/model_changes.h"
#include "engine/open_model.h"
#include "engine/output_place.h"
#include "io/files.h"
#include "io/json.h"
#include "plan/forecast.h"
#include "prepare/prepare.h"
#include "prepare/sources.h"
#include "prepare/token_file.h"
#include "train/check_resume.h"
#include "train/fit.h"
#include "train/run_folder.h"
#include "train/stored_fallbacks.h"

namespace hawser::train {
namespace {

constexpr std::int64_t kLargestRecipe = std::int64_t{16} << 20;  // of recipe.json

// Checks the token files of an earlier `prepare`, the only data of a recipe without data.train.
void check_prepared(const plan::RunPlan& plan, Problems& problems) {
  try {
    const prepare::TokenFiles files = prepare::token_files(plan.data);
    std::vector<std::string> sets;
    for (const auto& [name, prefix] : files.validation) sets.push_back(name);
    check_metric(plan.recipe, sets, problems);
    for (const auto& [name, prefix] : files.validation) static_cast<void>(prepare::TokenFile(prefix));
    const prepare::TokenFile file(files.train);
  } catch (const UserError& error) {
    problems.add_lines(error.what());
  }
}

// Without what needs a tokenizer if its place, or the model's, is unknown.
void check_data(const plan::RunPlan& plan, std::int64_t vocabulary, Problems& problems) {
  const Recipe& recipe = plan.recipe;
  if (!plan.prepares) {
    if (accepted(recipe, {"data.train", "data.prepared", "output"})) check_prepared(plan, problems);
    return;
  }
  if (accepted(recipe, {"data.validation", "data.tokenizer", "data.chat_template", "model.path", "model.config"})) {
    prepare::PrepareOptions options = plan.data;
    if (vocabulary > 0) options.vocab_size = vocabulary;
    prepare::check_sources(options, problems);
    return;
  }
  Problems of_sources;
  prepare::find_sources(recipe.data.train, recipe.folder, "data.train", of_sources);
  prepare::find_validation(plan.data.validation, recipe.folder, of_sources);
  problems.add(with_origins(recipe, of_sources));
}

// Token files that this run prepares are written to a folder of their own only if data.prepared names one.
void check_places(const plan::RunPlan& plan, Problems& problems) {
  if (!accepted(plan.recipe, {"output"})) return;
  engine::check_output(plan.files.folder, "output", {}, problems);
  if (!problems.empty() || !plan.prepares || prepare::token_files(plan.data).in_place) return;
  if (!accepted(plan.recipe, {"data.prepared"})) return;
  engine::check_output(plan.data.output, "data.prepared", {}, problems);
}

void check_checkpoint(const plan::RunPlan& plan, const FitPlace& place, const engine::OpenModel& open,
                      Problems& problems) {
  const bool divides = std::ranges::none_of(
      problems.all(), [](const Problem& problem) { return problem.what == kBatchSizesDoNotDivide; });
  plan::RunPlan compared = plan;
  if (!divides) compared.recipe.rejected.erase("train.global_batch_size");
  ResumedRun run{.plan = compared, .open = open, .device = place.device};
  if (open.model) run.frozen_weights = engine::frozen_identity(open);
  if (accepted(plan.recipe, {"data.tokenizer", "data.chat_template", "model.path", "model.config"})) {
    try {
      run.tokenizer_files = tokenizer_files_of(plan);
    } catch (const UserError&) {
      // check_data reports it
    }
  }
  Problems changes;
  if (check_resume(run, changes)) {
    problems = as_resumed(compared.recipe, place.world, problems, changes);
  } else {
    problems.add(changes);
  }
}

// The paths of a value of a recipe, a text or a list of texts and data sets, as absolute ones.
std::set<std::string> paths_in(const nlohmann::json& value, const Recipe& recipe) {
  if (value.is_string()) return {resolve_path(recipe, value.get<std::string>())};
  if (value.is_object()) return value.contains("path") ? paths_in(value.at("path"), recipe) : std::set<std::string>();
  std::set<std::string> out;
  if (!value.is_array()) return out;
  for (const nlohmann::json& item : value) out.merge(paths_in(item, recipe));
  return out;
}

// Two recipes with one output folder: the one would move the files of the other aside.
void check_earlier_run(const plan::RunPlan& plan, Problems& problems) {
  if (!has_earlier_run(plan.files) || !io::is_file(plan.files.recipe)) return;
  const auto then = io::json_or_null(io::read_text(plan.files.recipe, kLargestRecipe));
  const auto now = io::parse_own_json(recipe_json(plan.recipe));
  const auto value = [&](const nlohmann::json& recipe, const char* place) {
    const nlohmann::json::json_pointer pointer(place);
    return recipe.contains(pointer) ? recipe.at(pointer) : nlohmann::json();
  };
  struct Compared {
    const char *place, *key, *what;
  };
  static constexpr std::array kCompared = {Compared{"/model/path", "model.path", "another model"},
                                           Compared{"/model/config", "model.config", "another model"},
                                           Compared{"/adapter/kind", "adapter.kind", "another adapter"},
                                           Compared{"/data/train", "data.train", "other training data"}};
  for (const Compared& each : kCompared) {
    const nlohmann::json before = value(then, each.place), today = value(now, each.place);
    if (!then.is_object() || !accepted(plan.recipe, {each.key})) continue;
    if (paths_in(before, plan.recipe) == paths_in(today, plan.recipe)) continue;
    problems.add({.file = plan.files.folder,
                  .what = cat("the folder has a run with ", each.what),
                  .expected = before.is_null() ? "none" : before.dump(),
                  .got = today.is_null() ? "none" : today.dump(),
                  .at = each.key,
                  .hint = "--set output=... for this run, or --force, which moves the other one to earlier-N"});
    return;
  }
}

// The problems of the folder that `check` finds, with the place that names it.
template <class Check>
void check_folder(const plan::RunPlan& plan, const Check& check, Problems& problems) {
  Problems found;
  check(found);
  problems.add(with_origins(plan.recipe, found, "output", plan.files.folder));
}

}  // namespace

void check_fit(const plan::RunPlan& plan, const FitPlace& place, Problems& problems) {
  const bool output_accepted = accepted(plan.recipe, {"output"});
  const std::vector<engine::Fp8Fallback> fallbacks =
      place.resume && output_accepted ? stored_fallbacks(plan) : std::vector<engine::Fp8Fallback>{};
  engine::OpenModel open;
  if (accepted(plan.recipe, {"model.path", "model.config"})) {
    Problems of_model;
    open = engine::open_model(plan.model, plan.random_weights, of_model,
                              engine::changes_of(plan.recipe, 0, engine::modules_of(fallbacks)));
    problems.add(with_origins(plan.recipe, of_model, plan.random_weights ? "model.config" : "model.path", plan.model));
  }
  if (place.first) check_data(plan, open.model ? open.model->vocabulary() : 0, problems);
  // The other ranks print equal lines, or none.
  if ((place.first || !problems.empty()) && place.resume && accepted(plan.recipe, {"output", "run.device"})) {
    check_checkpoint(plan, place, open, problems);
  }
  if (place.first && !place.resume && !place.force && output_accepted) {
    check_folder(
        plan, [&](Problems& found) { check_earlier_run(plan, found); }, problems);
  }
  const std::string& folder = plan.files.folder;
  check_folder(
      plan, [&](Problems& found) { check_places(plan, found); }, problems);
  if (output_accepted)
    check_folder(
        plan, [&](Problems& found) { io::check_may_write(folder, found); }, problems);
  if (!problems.empty()) return;
  plan::Machine machine = plan::this_machine();
  machine.ranks = place.ranks_here;
  plan::check_capacity(plan.recipe, *open.model, place.world, place.threads, machine, plan::target_of(place.device));
  // Create the folder only if the run may start.
  if (place.first)
    check_folder(
        plan, [&](Problems& found) { io::check_writable(folder, found); }, problems);
}

}  // namespace hawser::train
