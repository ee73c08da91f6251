#include "cli/best.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/validation_metric.h"
#include "checkpoint/checkpoint.h"
#include "config/config.h"
#include "engine/find_checkpoint.h"
#include "engine/run_state.h"
#include "io/files.h"

namespace hawser::cli {
namespace {

namespace fs = std::filesystem;

std::string best_in(const std::string& run) {
  return (fs::path(run) / "best").string();
}

}  // namespace

std::string chosen_checkpoint(const std::string& path, bool best, Problems& problems) {
  if (!best) return path;
  if (io::is_folder(best_in(path)) && engine::checkpoints_below(path)) return best_in(path);
  const bool is_run = engine::checkpoints_below(path).has_value() && !engine::looks_like_checkpoint(path);
  problems.add({.file = path,
                .what = is_run ? "no best checkpoint" : "not a run's folder",
                .expected = is_run ? "OUTPUT/best of a run that evaluates" : "one, of which --best takes a checkpoint",
                .at = "--best",
                .hint = is_run ? "its last checkpoint, without --best" : ""});
  return path;
}

std::string better_than_last(const std::string& path, bool best) {
  const auto root = engine::checkpoints_below(path);
  if (best || !root || !io::is_folder(best_in(path)) || engine::looks_like_checkpoint(path)) return "";
  try {
    Problems skipped;
    const auto last = checkpoint::Checkpoint::latest(*root, skipped);
    if (!last) return "";
    const engine::RunState before = engine::run_state_of(checkpoint::Checkpoint::open(best_in(path)).metadata());
    const engine::RunState now = engine::run_state_of(last->metadata());
    const bool comparable = engine::same_validation(before.validation, now.validation);
    if (!comparable || !before.validation_loss || !now.validation_loss || before.step >= now.step) return "";
    const std::string metric = stored_section(now.recipe, "train").train.early_stopping_metric;
    const auto lowest = loss_of(*before.validation_loss, metric), newest = loss_of(*now.validation_loss, metric);
    if (!lowest || !newest || *lowest >= *newest) return "";
    return fmt::format(
        "the checkpoint of step {} was better than the last one: {} {:.4f}, and {:.4f} at step {}; try --best",
        before.step, metric_words(metric), *lowest, *newest, now.step);
  } catch (const UserError&) {  // the command reports what it needs of these files
    return "";
  }
}

}  // namespace hawser::cli
