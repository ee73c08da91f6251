#include "train/restore_best.h"

#include "base/validation_metric.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/root.h"
#include "io/files.h"
#include "train/run_folder.h"
#include "train/saver.h"

namespace hawser::train {
namespace {

std::optional<engine::RunState> state_in(const std::string& folder) {
  if (!io::exists(folder)) return std::nullopt;
  try {
    return engine::run_state_of(checkpoint::Checkpoint::open(folder).metadata());
  } catch (const io::IoError&) {
    throw;  // says nothing about the contents
  } catch (const UserError&) {
    return std::nullopt;  // corrupt: another one replaces it
  }
}

// A corrupt checkpoint that was set aside may have been `best` too, through a hard link: then `best` goes as well.
void set_aside_if_corrupt(const plan::RunFiles& files, const std::function<void(const std::string&)>& log) {
  const std::string& best = files.best;
  const auto state = state_in(best);
  const std::string copy =
      state ? cat(files.checkpoints, "/damaged-", checkpoint::step_name(state->step)) : std::string();
  if (state && !io::exists(copy)) return;
  if (!io::exists(best)) return;
  Problems corrupt;
  try {
    checkpoint::Checkpoint::open(best).verify(corrupt);
  } catch (const io::IoError&) {
    throw;  // says nothing about the contents
  } catch (const UserError& error) {
    corrupt.add_lines(error.what());
  }
  if (corrupt.empty()) return;
  log(cat("hawser: ", corrupt.all().front().line()));
  log("hawser: the corrupt best checkpoint was moved to " + checkpoint::set_aside_corrupt(best));
}

}  // namespace

std::optional<double> restore_best(const plan::RunFiles& files, const Validation& validation, bool trains,
                                   const std::function<void(const std::string&)>& log) {
  const std::string& best = files.best;
  checkpoint::finish_keep(best);
  set_aside_if_corrupt(files, log);
  if (validation.data.empty()) return std::nullopt;
  const auto comparable = [&](const engine::RunState& state) {
    return state.validation.empty() || engine::same_validation(state.validation, validation.data);
  };
  const auto loss_in = [&](const engine::RunState& state) {
    return state.validation_loss ? loss_of(*state.validation_loss, validation.metric) : std::nullopt;
  };
  std::optional<double> loss;
  bool replaces = true;
  if (const auto state = state_in(best)) {
    if (comparable(*state)) {
      loss = loss_in(*state);
    } else if (!trains) {
      replaces = false;
    } else {
      const std::string folder = new_earlier_folder(files.folder);
      io::rename_path(best, folder + "/best");
      log(
          cat("hawser: the validation data have changed, so losses cannot be compared; the best checkpoint so far was "
              "moved to ",
              folder, "/best"));
    }
  }
  std::string better;
  Problems ignored;
  for (const std::string& folder : checkpoint::complete_checkpoints(files.checkpoints, ignored)) {
    const auto state = state_in(folder);
    const auto found = state && comparable(*state) ? loss_in(*state) : std::nullopt;
    if (!found || (loss && *found >= *loss)) continue;
    loss = found;
    better = folder;
  }
  if (!better.empty() && replaces) checkpoint::keep_also_as(better, best);
  return loss;
}

}  // namespace hawser::train
