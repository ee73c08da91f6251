// Runs a command's body on one or many ranks; errors are printed once. Internal to cli/.
#pragma once

#include <functional>

#include "base/error.h"
#include "comm/mpi/world.h"
#include "config/recipe.h"
#include "engine/rank_device.h"
#include "launch/local.h"

namespace hawser::cli {

// The rank of this process, before any communication.
struct RankPlace {
  int rank = 0, ranks = 1;
};

struct RankedBody {
  // Checks the user's input; does not communicate. Rank 0 prints the problems of all ranks, each line once. All ranks
  // exit with ExitCode::bad_input, or with the code of an Error that a rank's check threw (does_not_fit).
  std::function<void(const RankPlace&, Problems&)> check;
  // Called if no rank found a problem. `world` null: this process only. Returns the exit code, equal on all ranks; an
  // exception on one rank ends all of them.
  std::function<int(comm::World* world)> run;
};

// Runs on `world` ranks started by a launcher (must_launch is false); this process is one of them.
int run_on_ranks(int world, const Recipe& recipe, const RankedBody& body);

// launch_local with a check of standard output: it is an error if the output of ranks cannot be written.
int launch_ranks(const LocalLaunch& launch);

// The device of this process, by run.device; for a process that starts `world` ranks here, that of the first rank.
// UserError if there are none or too few. Prints a
// warning, once in a run, if the build does not support some GPUs of this machine.
engine::RankDevice device_of(const Recipe& recipe, int world);

// CPU threads of this rank: run.threads, else cores / ranks of this machine.
int threads_of(const Recipe& recipe);

}  // namespace hawser::cli
