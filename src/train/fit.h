// Training as a recipe says: the loop, its checkpoints, its evaluation and what it reports.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/recipe.h"
#include "comm/mpi/world.h"
#include "report/progress.h"
#include "train/rank_device.h"
#include "train/run_folder.h"
#include "train/run_saver.h"

namespace hawser::train {

struct FitRequest {
  Recipe recipe;
  bool resume = false;  // go on from the newest whole checkpoint; none: from the start
  int threads = 1;      // CPU threads of a rank
  int ranks_here = 1;   // ranks on this machine
  RankDevice device;
  // Asked once a step on every rank; true on one: all save and stop.
  std::function<bool()> stop_requested = [] { return false; };
  report::ProgressOptions progress;  // rank 0's; total, first and log_every are filled in
};

struct FitResult {
  std::int64_t steps = 0;  // done, counted from the start of the run
  bool interrupted = false;
  std::optional<double> train_loss;       // of the last step; none where this call did none
  std::optional<double> validation_loss;  // of the last evaluation, nats a target
  double tokens_per_second = 0;           // mean over this call's steps but the first, unless it is the only one
  std::string checkpointing;              // as typed: what auto came to, or what the recipe said
  std::optional<double> imbalance;        // with context parallelism: of attention work, mean over this call's steps
  std::string checkpoint;                 // folder of the last one written
  // What was said of this run's kernels: which attention it took, and products that run slowly.
  std::vector<std::string> notes;
  SaveTimes saving;
};

// Where a rank that is checked stands.
struct FitPlace {
  int world = 1, ranks_here = 1, threads = 1;  // ranks in all and on this machine; threads of each
  DeviceKind device = DeviceKind::cpu;
  bool first = true;  // ranks but the first leave the data, and making the output, to it
};

// Everything a user may have got wrong that shows without reading data or touching devices: model, data files,
// tokenizer, output. Adds all problems; where there is none, throws Error(does_not_fit) with settings that fit if a
// rank needs more memory than it may use, and makes the output folder where there is none.
void check_fit(const Recipe& recipe, const FitPlace& place, Problems& problems);

// `world` null: this process alone. Every rank calls it. The recipe has passed config's checks for this world and
// check_fit. Prepares the token files where they are missing or stale. Without `resume`, what an earlier run left in
// the output is set aside (run_folder.h). When it throws with other ranks there, the process must end by World::abort:
// streams that wait for ranks that have gone another way are left as they are.
FitResult fit(const FitRequest& request, comm::World* world);

}  // namespace hawser::train
