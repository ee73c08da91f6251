#include "train/check_resume.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "checkpoint/root.h"
#include "config/config.h"
#include "engine/run_state.h"
#include "io/json.h"
#include "models/families.h"
#include "plan/make_optimizer.h"
#include "plan/target.h"
#include "text/chat/chat_template.h"
#include "text/tokenizers/tokenizer.h"
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
    // The checkpoint has no config.json beside its tokenizer.
    std::string model = text::tokenizer_model_of(data.tokenizer);
    if (!model.empty()) files.push_back({text::kTokenizerModelFile, std::move(model)});
  }
  models::add_generation_config(plan.model, files);
  // A new model ends its texts with the tokens of its tokenizer.
  if (plan.random_weights && !data.tokenizer.empty()) models::add_generation_config(data.tokenizer, files);
  return files;
}

namespace {

// Whether this recipe_json has a chat template of its own.
bool has_chat_template(const std::string& recipe) {
  const auto json = io::json_or_null(recipe);
  const nlohmann::json::json_pointer place("/data/chat_template");
  return json.is_object() && json.value(place, nlohmann::json()).is_string() && json.at(place) != "";
}

// A template of a recipe is data, not tokenizer: data_changes reports what it changes.
std::string tokenizer_changes(const ResumedRun& run, const checkpoint::Checkpoint& checkpoint,
                              const std::string& recipe_before) {
  const bool templates_are_data = !run.plan.data.chat_template.empty() || has_chat_template(recipe_before);
  const auto is_other = [&](const std::string& name) {
    return name == models::kGenerationConfigFile || (templates_are_data && models::is_chat_template_file(name));
  };
  return engine::tokenizer_changes(checkpoint, run.tokenizer_files, is_other);
}

// Another model is one change, whatever of it has changed.
Problems of_first(const std::vector<Problems>& kinds) {
  for (const Problems& problems : kinds) {
    if (!problems.empty()) return problems;
  }
  return {};
}

}  // namespace

Problems resume_changes(const ResumedRun& run, const checkpoint::Checkpoint& checkpoint) {
  const plan::RunPlan& plan = run.plan;
  const std::string& folder = checkpoint.folder();
  const engine::RunState state = engine::run_state_of(checkpoint.metadata());
  const std::string recipe = recipe_json(plan.recipe);
  const std::string model_key = plan.random_weights ? "model.config" : "model.path";
  Problems all;
  if (run.open.model) {
    all.add(of_first({engine::description_changes(state, run.open.model->whole(), model_key, folder),
                      engine::base_changes(state.base, run.frozen_weights, folder, true)}));
  }
  const bool other_model = !all.empty();
  if (run.open.model) {
    all.add(engine::computation_changes(state, plan::compute_dtype(plan.recipe.precision, run.device),
                                        plan::make_optimizer(plan.recipe.optimizer)->name(), recipe, folder));
  }
  all.add(engine::adapter_changes(state, recipe, folder));
  if (run.open.model && !other_model) all.add(engine::frozen_changes(state, recipe, *run.open.model, folder));
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
  const bool of_the_model = plan.recipe.data.tokenizer.empty();  // its folder has the tokenizer
  const std::string tokenizer =
      of_the_model && other_model ? std::string() : tokenizer_changes(run, checkpoint, state.recipe);
  if (!tokenizer.empty()) {
    all.add({.file = folder,
             .what = "the tokenizer has changed: " + tokenizer,
             .at = of_the_model ? model_key : "data.tokenizer",
             .hint = cat("--set data.tokenizer=", folder, ", or --set output=... for a new run")});
  }
  Problems out;
  for (const Problem& problem : all.all()) {
    if (accepted(plan.recipe, {problem.at})) out.add(problem);
  }
  return with_origins(plan.recipe, out);
}

bool check_resume(const ResumedRun& run, Problems& problems) {
  const std::string& root = run.plan.files.checkpoints;
  try {
    Problems skipped;
    const std::optional<checkpoint::Checkpoint> newest = checkpoint::Checkpoint::latest(root, skipped);
    if (!newest) {
      const std::optional<Problem> none = none_is_complete(root);
      if (!none) return false;  // the run starts at step 0
      for (const Problem& problem : skipped.all()) problems.add_lines("skipped: " + problem.line());
      problems.add(*none);
      return false;
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
    if (is_compared(*newest)) return true;
    for (const std::string& folder : checkpoint::complete_checkpoints(root, skipped)) {  // load_newest() falls back
      if (folder != newest->folder() && is_compared(checkpoint::Checkpoint::open(folder))) return true;
    }
    problems.add_lines(corrupt);
    problems.add(no_older_checkpoint(root));
  } catch (const UserError& error) {
    problems.add_lines(error.what());
  }
  return false;
}

namespace {

// "--ranks 2 or 4, or train.micro_batch_size: 1": the nearest settings with which the batch divides, this one kept.
std::string layouts_near(Recipe recipe, int world) {
  constexpr std::int64_t kTries = 1024;
  const std::int64_t batch = recipe.train.global_batch_size, micro = recipe.train.micro_batch_size;
  const auto first = [](std::int64_t from, std::int64_t to, std::int64_t step, const auto& fits) -> std::int64_t {
    for (std::int64_t i = from, tries = 0; i != to && tries < kTries; i += step, ++tries) {
      if (fits(i)) return i;
    }
    return 0;
  };
  const auto fits = [&](int ranks, std::int64_t sequences) {
    recipe.train.micro_batch_size = sequences;
    Problems problems;
    check_layout(recipe, ranks, problems);
    return batch % sequences == 0 && problems.empty();
  };
  std::vector<std::string> hints;
  const auto with_ranks = [&](std::int64_t ranks) { return fits(static_cast<int>(ranks), micro); };
  const std::int64_t below = first(world - 1, 0, -1, with_ranks),
                     above = first(world + 1, world + kTries, 1, with_ranks);
  if (below > 0 || above > 0) {
    hints.push_back(cat("--ranks ", below > 0 ? cat(below) : "", below > 0 && above > 0 ? " or " : "",
                        above > 0 ? cat(above) : ""));
  }
  const auto with_micro = [&](std::int64_t sequences) { return fits(world, sequences); };
  std::int64_t other = first(micro - 1, 0, -1, with_micro);
  if (other == 0) other = first(micro + 1, batch + 1, 1, with_micro);
  if (other > 0) hints.push_back(cat("train.micro_batch_size: ", other));
  if (hints.empty()) return "--set output=... for a new run";
  return cat(hints.front(), hints.size() > 1 ? ", or " + hints.back() : "");
}

std::string key_of(const Problem& problem) {
  return problem.at.substr(0, problem.at.find_first_of(",["));
}

}  // namespace

Problems as_resumed(const Recipe& recipe, int world, const Problems& problems, const Problems& changes) {
  const std::string batch = "train.global_batch_size";
  std::set<std::string> changed;
  for (const Problem& change : changes.all()) changed.insert(key_of(change));
  const bool other_adapter = changed.contains("adapter.kind");
  Problems out;
  for (Problem problem : problems.all()) {
    const std::string key = key_of(problem);
    if (changed.contains(key) || (other_adapter && key.starts_with("adapter."))) continue;
    if (key == batch && accepted(recipe, {batch})) problem.hint = layouts_near(recipe, world);
    out.add(std::move(problem));
  }
  out.add(changes);
  return out;
}

}  // namespace hawser::train
