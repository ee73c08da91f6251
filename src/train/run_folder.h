// The output folder of a run: holds one run at a time, and keeps the files of earlier runs.
#pragma once

#include <string>

#include "base/recipe.h"
#include "checkpoint/storage/posix.h"

namespace hawser::train {

std::string output_folder(const Recipe& recipe);
std::string checkpoints_folder(const Recipe& recipe);
// The checkpoint with the lowest validation loss so far.
std::string best_path(const Recipe& recipe);
std::string metrics_path(const Recipe& recipe);
std::string tensorboard_folder(const Recipe& recipe);
std::string html_path(const Recipe& recipe);
// The algorithms chosen for a run's GEMMs. The file is not set aside, so that the next run in the folder uses the same.
std::string gemm_algorithms_path(const Recipe& recipe);
// The file of an earlier run in this folder (named products.txt in version 0.1); "" if there is none.
std::string stored_gemm_algorithms_path(const Recipe& recipe);

// Creates the folder and locks it until the file is closed or the process ends. UserError if another run still holds
// the lock after ten seconds (the ranks of a killed run need a few seconds to end).
checkpoint::File hold_output(const Recipe& recipe);

// For a run that starts from step 0: moves checkpoints, best and metrics of an earlier run to OUTPUT/earlier-N. Returns
// that folder; "" if there was nothing to move.
std::string set_aside_earlier(const Recipe& recipe);

}  // namespace hawser::train
