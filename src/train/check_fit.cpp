#include "config/config.h"
#include "engine/model_changes.h"
#include "engine/open_model.h"
#include "engine/output_place.h"
#include "io/files.h"
#include "plan/forecast.h"
#include "prepare/prepare.h"
#include "prepare/sources.h"
#include "prepare/token_file.h"
#include "train/check_resume.h"
#include "train/fit.h"
#include "train/stored_fallbacks.h"

namespace hawser::train {
namespace {

// Checks the token files of an earlier `prepare`, the only data of a recipe without data.train.
void check_prepared(const plan::RunPlan& plan, Problems& problems) {
  try {
    const prepare::TokenFile file(prepare::token_files(plan.data).train);
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
  prepare::find_sources(recipe.data.train, recipe.folder, "data.train", problems);
  prepare::find_sources(recipe.data.validation, recipe.folder, "data.validation", problems);
}

// Token files that this run prepares are written to a folder of their own only if data.prepared names one.
void check_places(const plan::RunPlan& plan, Problems& problems) {
  const std::size_t before = problems.size();
  if (!accepted(plan.recipe, {"output"})) return;
  engine::check_output(plan.files.folder, "output", {}, problems);
  if (problems.size() > before || !plan.prepares || prepare::token_files(plan.data).in_place) return;
  if (!accepted(plan.recipe, {"data.prepared"})) return;
  engine::check_output(plan.data.output, "data.prepared", {}, problems);
}

void check_checkpoint(const plan::RunPlan& plan, const FitPlace& place, const engine::OpenModel& open,
                      Problems& problems) {
  ResumedRun run{.plan = plan, .open = open, .device = place.device};
  if (open.model) run.frozen_weights = engine::frozen_identity(open);
  if (accepted(plan.recipe, {"data.tokenizer", "data.chat_template", "model.path", "model.config"})) {
    try {
      run.tokenizer_files = tokenizer_files_of(plan);
    } catch (const UserError&) {
      // check_data reports it
    }
  }
  check_resume(run, problems);
}

}  // namespace

void check_fit(const plan::RunPlan& plan, const FitPlace& place, Problems& problems) {
  const bool output_accepted = accepted(plan.recipe, {"output"});
  const std::vector<engine::Fp8Fallback> fallbacks =
      place.resume && output_accepted ? stored_fallbacks(plan) : std::vector<engine::Fp8Fallback>{};
  engine::OpenModel open;
  if (accepted(plan.recipe, {"model.path", "model.config"})) {
    open = engine::open_model(plan.model, plan.random_weights, problems,
                              engine::changes_of(plan.recipe, engine::modules_of(fallbacks)));
  }
  if (place.first) check_data(plan, open.model ? open.model->vocabulary() : 0, problems);
  if (place.first && place.resume && accepted(plan.recipe, {"output", "run.device"})) {
    check_checkpoint(plan, place, open, problems);
  }
  check_places(plan, problems);
  if (output_accepted) io::check_may_write(plan.files.folder, problems);
  if (!problems.empty()) return;
  plan::Machine machine = plan::this_machine();
  machine.ranks = place.ranks_here;
  plan::check_capacity(plan.recipe, *open.model, place.world, place.threads, machine, plan::target_of(place.device));
  // Create the folder only if the run may start.
  if (place.first) io::check_writable(plan.files.folder, problems);
}

}  // namespace hawser::train
