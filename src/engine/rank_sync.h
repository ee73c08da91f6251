// Synchronization of ranks outside of steps: long work without timeouts, and results and errors of a rank shared with
// all ranks. `world`: the run's channel, or that of the calling thread. It is null if there is one
// process.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/mpi/world.h"

namespace hawser::engine {

// Runs `work` on a separate thread while the ranks keep synchronizing, and returns when all are done. However long the
// work takes, no rank runs into a timeout, and a rank that hangs is still detected. Rethrows the error of this rank's
// work only. Every rank calls it. The work must not communicate.
void take_time(comm::Channel* world, const std::function<void()>& work);

// Runs `work` on rank 0, for any duration; all ranks return its result or throw its Error.
std::string on_rank_zero(comm::Channel* world, const std::function<std::string()>& work);

// The same for work that is short against the channel's time limit: it costs one broadcast.
std::string short_work_on_rank_zero(comm::Channel* world, const std::function<std::string()>& work);

// Runs `work` on every rank, for any duration. All ranks return the results by rank, or throw the Error of the first
// rank whose work throws one. So a rank that fails leaves no other waiting in the next communication. The work must
// not communicate.
std::vector<std::string> on_each_rank(comm::Channel* world, const std::function<std::string()>& work);

}  // namespace hawser::engine
