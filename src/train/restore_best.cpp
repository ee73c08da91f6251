#include "train/restore_best.h"

#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint.h"
#include "checkpoint/root.h"
#include "train/run_folder.h"
#include "train/saver.h"

namespace hawser::train {
namespace {

std::optional<RunState> state_in(const std::string& folder) {
  if (!checkpoint::exists(folder)) return std::nullopt;
  try {
    return run_state_of(checkpoint::Checkpoint::open(folder).metadata());
  } catch (const UserError&) {
    return std::nullopt;  // corrupt: another one replaces it
  }
}

}  // namespace

std::optional<double> restore_best(const Recipe& recipe, const std::string& validation,
                                   const std::function<void(const std::string&)>& log) {
  const std::string best = best_path(recipe);
  checkpoint::finish_keep(best);
  if (validation.empty()) return std::nullopt;
  const auto comparable = [now = nlohmann::json::parse(validation)](const RunState& state) {  // keys in any order
    return state.validation.empty() || nlohmann::json::parse(state.validation) == now;
  };
  std::optional<double> loss;
  if (const auto state = state_in(best)) {
    if (comparable(*state)) {
      loss = state->validation_loss;
    } else {
      const std::string folder = new_earlier_folder(recipe);
      checkpoint::rename_path(best, folder + "/best");
      log(
          cat("hawser: the validation data have changed, so losses cannot be compared; the best checkpoint so far was "
              "moved to ",
              folder, "/best"));
    }
  }
  std::string better;
  Problems ignored;
  for (const std::string& folder : checkpoint::complete_checkpoints(checkpoints_folder(recipe), ignored)) {
    const auto state = state_in(folder);
    if (!state || !state->validation_loss || !comparable(*state)) continue;
    if (loss && *state->validation_loss >= *loss) continue;
    loss = state->validation_loss;
    better = folder;
  }
  if (!better.empty()) checkpoint::keep_also_as(better, best);
  return loss;
}

}  // namespace hawser::train
