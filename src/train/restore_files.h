// `restore_files`: files that the folder of a finished run lacks.
#pragma once

#include <functional>
#include <string>

#include "engine/run_state.h"
#include "report/phase_clock.h"
#include "train/collect_facts.h"

namespace hawser::train {

// For a resume that has no step to run; `state` is that of its checkpoint. Writes recipe.json if it is missing, with
// RunState::recipe. Writes report.html if it is missing, or says that the run is not finished because the run was
// killed after its last checkpoint; but not if the recipe of `place` trains otherwise or has no report.
// Changes no other file. UserError if recipe.json cannot be written; a failure of the report is a warning to `log`.
void restore_files(const RunPlace& place, const engine::RunState& state, const report::PhaseClock& phases,
                   const std::function<void(const std::string&)>& log);

}  // namespace hawser::train
