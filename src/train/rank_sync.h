// What ranks do together outside steps: long work that nobody's time limit interrupts, and results and errors of rank 0
// that all ranks share. `world`: the run's own channel, or that of the thread which asks; null: this process alone.
#pragma once

#include <functional>
#include <string>

#include "comm/mpi/world.h"

namespace hawser::train {

// Runs `work` on a thread of its own while the ranks keep meeting, and returns when all are done: however long a disk
// takes, no rank waits in vain, and one that hangs is still found. What this rank's work throws is thrown here only.
// Every rank calls it. The work sends no messages.
void take_time(comm::Channel* world, const std::function<void()>& work);

// Rank 0 does the work, however long it takes; all ranks return its result or throw its Error.
std::string on_rank_zero(comm::Channel* world, const std::function<std::string()>& work);

}  // namespace hawser::train
