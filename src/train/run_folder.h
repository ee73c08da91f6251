// The output folder of a run: holds one run at a time, and keeps the files of earlier runs.
#pragma once

#include <optional>
#include <string>

#include "io/files.h"
#include "plan/run_plan.h"

namespace hawser::train {

// RunFiles::gemm_algorithms of an earlier run in this folder (named products.txt in version 0.1); "" if there is none.
std::string stored_gemm_algorithms_path(const plan::RunFiles& files);

// What a run holds open in its output folder while it writes there. The lock ends with the process.
struct OutputHold {
  io::File folder, lock;
  bool locked = false;  // false: the file system has no locks, and another run in this folder cannot be detected
};

// Creates the folder and locks it. UserError if another run still holds the lock after ten seconds (the ranks of a
// killed run need a few seconds to end), and if a link to the run's files has no target.
OutputHold hold_output(const std::string& output);

// Where a run must save instead of its output folder, and why.
struct Displaced {
  std::string folder;
  std::string what;  // "the output folder was moved to X while the run was writing to it"
};

// Checks that the output folder and its lock are still the ones that the run opened. If not, another run may write
// there, or this run's files cannot be found. A moved folder is followed; a removed folder, or one without this run's
// lock, is replaced by a new folder OUTPUT.rescued-N. nullopt if everything is in place. UserError if no folder can be
// created.
std::optional<Displaced> displaced(const std::string& output, const OutputHold& hold);

// Whether an earlier run in this folder has taken a step.
bool has_earlier_run(const plan::RunFiles& files);

// Creates OUTPUT/earlier-N with the first N that is not taken.
std::string new_earlier_folder(const std::string& output);

// For a run that starts from step 0: moves checkpoints, best, metrics and reports of an earlier run to
// OUTPUT/earlier-N. Returns that folder; "" if there was nothing to move. `recipe`: text of this run's recipe.json. If
// a file cannot be moved, all are moved back: an earlier run stays whole, also for --resume.
std::string set_aside_earlier(const plan::RunFiles& files, const std::string& recipe);

// Moves files back to where they were if set_aside_earlier was killed. Call before anything reads the earlier run.
void undo_interrupted_move(const std::string& output);

}  // namespace hawser::train
