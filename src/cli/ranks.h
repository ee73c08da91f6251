// A command's body on one rank or on many, with errors that are said once. Internal to cli/.
#pragma once

#include <functional>

#include "base/error.h"
#include "base/recipe.h"
#include "comm/mpi/world.h"
#include "launch/local.h"
#include "train/rank_device.h"

namespace hawser::cli {

// Where a rank stands before any message is sent.
struct RankPlace {
  int rank = 0, ranks = 1;
};

struct RankedBody {
  // Finds what the user may have got wrong; sends nothing. Rank 0 prints what any rank found, each line once, and all
  // ranks end with ExitCode::bad_input, or with the code of the Error that a rank's check threw (does_not_fit).
  std::function<void(const RankPlace&, Problems&)> check;
  // Only where no rank found anything. `world` null: this process alone. Returns the exit code, on which the ranks
  // agree; an exception on one rank ends them all.
  std::function<int(comm::World* world)> run;
};

// On `world` ranks that a launcher started (must_launch is false), this process being one of them.
int run_on_ranks(int world, const Recipe& recipe, const RankedBody& body);

// launch_local, with standard output watched: what ranks print and nobody takes is an error.
int launch_ranks(const LocalLaunch& launch);

// The device of this process, by run.device; of one that starts `world` ranks here, the first's. UserError where there
// is none, or not enough of them.
train::RankDevice device_of(const Recipe& recipe, int world);

// CPU threads of this rank: run.threads, else cores / ranks on this machine.
int threads_of(const Recipe& recipe);

}  // namespace hawser::cli
