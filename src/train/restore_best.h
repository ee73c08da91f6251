// `restore_best`: OUTPUT/best of a resumed run.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "plan/run_plan.h"

namespace hawser::train {

// What evaluations of a run measure, and which loss decides what OUTPUT/best is.
struct Validation {
  std::string data;    // engine::RunState::validation
  std::string metric;  // train.early_stopping.metric
};

// Makes OUTPUT/best the checkpoint with the lowest validation loss among itself and OUTPUT/checkpoints, and returns
// that loss; nullopt if there is none. `validation.metric` names the loss. A run that ended between a save and the
// update of `best` left an older one.
//
// A `best` that is corrupt is moved to OUTPUT/damaged-best, with a line to `log`; its data are read only if the
// checkpoint of the same step was found corrupt.
//
// Only losses of the same validation data are compared (RunState::validation; `validation.data` is this run's). A
// `best` of other validation data is moved to OUTPUT/earlier-N, with a line to `log`. Call on rank 0. UserError if
// files cannot be renamed. `trains`: the run has steps left; if not, a `best` of other validation data stays.
std::optional<double> restore_best(const plan::RunFiles& files, const Validation& validation, bool trains,
                                   const std::function<void(const std::string&)>& log);

}  // namespace hawser::train
