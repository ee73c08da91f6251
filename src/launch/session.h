// Ending every process of a session, however it stands: mpirun and its ranks live in one of their own (local.cpp).
// Internal to launch/.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <vector>

namespace hawser {

// While it lives, processes whose parents end become children of this one, so that it can wait for the last of them.
class Adoption {
 public:
  Adoption();
  ~Adoption();
  Adoption(const Adoption&) = delete;
  Adoption& operator=(const Adoption&) = delete;

 private:
  int before_ = 0;
};

// Kills (SIGKILL, which ends stopped processes too) all processes of the session and waits until none is left: then
// no thread of any of them runs, and nothing is written any more. Needs an Adoption from before the session began.
// Returns those that have not ended within `patience`: the kernel holds them, as on a disk that does not answer.
// `leader_status`, where given, takes the wait status of the session's leader when this call is the one that waits for
// it.
std::vector<pid_t> end_session(pid_t session, std::chrono::milliseconds patience, int* leader_status = nullptr);

}  // namespace hawser
