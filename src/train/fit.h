// Training as a recipe says: the loop, its checkpoints, its evaluation and what it reports.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/recipe.h"
#include "comm/mpi/world.h"
#include "report/progress.h"

namespace hawser::train {

struct FitRequest {
  Recipe recipe;
  bool resume = false;  // go on from the newest whole checkpoint; none: from the start
  int threads = 1;      // CPU threads of a rank
  // Asked once a step on every rank; true on one: all save and stop after the step.
  std::function<bool()> stop_requested = [] { return false; };
  report::ProgressOptions progress;  // rank 0's; total, first and log_every are filled in
};

struct FitResult {
  std::int64_t steps = 0;                 // done, counted from the start of the run
  bool interrupted = false;
  double train_loss = 0;                  // of the last step
  std::optional<double> validation_loss;  // of the last evaluation, nats a target
  double tokens_per_second = 0;           // mean over this call's steps but the first
  std::string checkpoint;                 // folder of the last one written
};

// Where a run keeps its things, below recipe.output.
std::string checkpoints_folder(const Recipe& recipe);
std::string data_folder(const Recipe& recipe);

// Everything a user may have got wrong, without touching data or devices: model, data files, output. Adds all problems.
void check_fit(const Recipe& recipe, int world, Problems& problems);

// `world` null: this process alone. Every rank calls it. The recipe has passed config's checks for this world and
// check_fit. Prepares the token files where they are missing or stale.
FitResult fit(const FitRequest& request, comm::World* world);

}  // namespace hawser::train
