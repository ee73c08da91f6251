#include "train/check_resume.h"

#include <algorithm>
#include <optional>

#include "checkpoint/root.h"
#include "config/config.h"
#include "engine/run_state.h"
#include "models/families.h"
#include "plan/target.h"
#include "text/chat/chat_template.h"
#include "train/saver.h"

namespace hawser::train {

std::vector<checkpoint::Attachment> tokenizer_files_of(const plan::RunPlan& plan) {
  const prepare::PrepareOptions& data = plan.data;
  std::vector<checkpoint::Attachment> files;
  if (!data.tokenizer.empty()) {
    files = models::tokenizer_files(data.tokenizer);
    const auto own = text::chat::as_tokenizers_own(data.chat_template, data.tokenizer, data.folder);
    if (!own.empty()) {
      std::erase_if(files, [](const checkpoint::Attachment& file) { return models::is_chat_template_file(file.name); });
      for (const text::chat::TemplateFile& file : own) files.push_back({file.name, file.text});
    }
  }
  models::add_generation_config(plan.model, files);
  // A new model ends its texts with the tokens of its tokenizer.
  if (plan.random_weights && !data.tokenizer.empty()) models::add_generation_config(data.tokenizer, files);
  return files;
}

namespace {

// A template of the recipe is data, not tokenizer: data_changes reports what it changes.
std::string tokenizer_changes(const ResumedRun& run, const checkpoint::Checkpoint& checkpoint) {
  const auto is_other = [&](const std::string& name) {
    return name == models::kGenerationConfigFile ||
           (!run.plan.data.chat_template.empty() && models::is_chat_template_file(name));
  };
  return engine::tokenizer_changes(checkpoint, run.tokenizer_files, is_other);
}

}  // namespace

Problems resume_changes(const ResumedRun& run, const checkpoint::Checkpoint& checkpoint) {
  const plan::RunPlan& plan = run.plan;
  const std::string& folder = checkpoint.folder();
  const engine::RunState state = engine::run_state_of(checkpoint.metadata());
  const std::string recipe = recipe_json(plan.recipe);
  Problems all;
  if (run.open.model) {
    // Recipes have one optimizer, that of a default layout.
    all.add(engine::computation_changes(state, run.open.model->description(),
                                        plan::compute_dtype(plan.recipe.precision, run.device),
                                        plan::Layout().optimizer->name(), recipe, folder));
    all.add(engine::base_changes(state.base, run.frozen_weights, folder, true));
  }
  all.add(engine::adapter_changes(state, recipe, folder));
  if (run.open.model) all.add(engine::fp8_changes(state, recipe, run.open.model->blocks(), folder));
  if (state.step > 0 && state.sequences != state.step * plan.global_batch_size) {
    const std::int64_t before = state.sequences / state.step;
    all.add({.file = folder,
             .what = "the checkpoint is from a run with another batch size",
             .expected = cat(before),
             .got = cat(plan.global_batch_size),
             .at = "train.global_batch_size",
             .hint = cat("--set train.global_batch_size=", before, ", or --set output=... for a new run")});
  }
  if (const std::string tokenizer = tokenizer_changes(run, checkpoint); !tokenizer.empty()) {
    all.add({.file = folder,
             .what = "the tokenizer has changed: " + tokenizer,
             .at = "data.tokenizer",
             .hint = cat("--set data.tokenizer=", folder, ", or --set output=... for a new run")});
  }
  Problems out;
  for (const Problem& problem : all.all()) {
    if (accepted(plan.recipe, {problem.at})) out.add(problem);
  }
  return out;
}

void check_resume(const ResumedRun& run, Problems& problems) {
  const std::string& root = run.plan.files.checkpoints;
  try {
    Problems skipped;
    const std::optional<checkpoint::Checkpoint> newest = checkpoint::Checkpoint::latest(root, skipped);
    if (!newest) {
      const std::optional<Problem> none = none_is_complete(root);
      if (!none) return;  // the run starts at step 0
      for (const Problem& problem : skipped.all()) problems.add_lines("skipped: " + problem.line());
      problems.add(*none);
      return;
    }
    std::string corrupt;
    const auto is_compared = [&](const checkpoint::Checkpoint& checkpoint) {
      try {
        problems.add(resume_changes(run, checkpoint));
        return true;
      } catch (const checkpoint::CorruptCheckpoint& error) {
        if (corrupt.empty()) corrupt = error.what();
        return false;
      }
    };
    if (is_compared(*newest)) return;
    for (const std::string& folder : checkpoint::complete_checkpoints(root, skipped)) {  // load_newest() falls back
      if (folder != newest->folder() && is_compared(checkpoint::Checkpoint::open(folder))) return;
    }
    problems.add_lines(corrupt);
    problems.add(no_older_checkpoint(root));
  } catch (const UserError& error) {
    problems.add_lines(error.what());
  }
}

}  // namespace hawser::train
