// The folder that a run writes: one run at a time, and nothing of an earlier run is lost.
#pragma once

#include <string>

#include "base/recipe.h"
#include "checkpoint/storage/posix.h"

namespace hawser::train {

std::string output_folder(const Recipe& recipe);
std::string checkpoints_folder(const Recipe& recipe);
// The checkpoint with the lowest validation loss.
std::string best_path(const Recipe& recipe);
std::string metrics_path(const Recipe& recipe);
std::string tensorboard_folder(const Recipe& recipe);
std::string html_path(const Recipe& recipe);
// Algorithms that a run chose for its GEMMs; not set aside, so that the next one here takes the same.
std::string gemm_algorithms_path(const Recipe& recipe);
// The file of an earlier run in this folder, whose name was products.txt in version 0.1; "" if there is none.
std::string stored_gemm_algorithms_path(const Recipe& recipe);

// Makes the folder and holds it until the file is closed or this process ends, however it ends. UserError when another
// run still has it after ten seconds (the ranks of one that was killed need a few to end).
checkpoint::File hold_output(const Recipe& recipe);

// For a run that starts anew: moves checkpoints, best and metrics of an earlier one to OUTPUT/earlier-N, so that they
// neither mix with the new ones nor are lost. Returns that folder; "" when there was nothing.
std::string set_aside_earlier(const Recipe& recipe);

}  // namespace hawser::train
