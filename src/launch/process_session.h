// `end_session`: kills every process of a session. mpirun and its ranks run in a session of their own (local.cpp).
// Internal to launch/.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace hawser {

// While it exists, this process adopts orphaned descendants (child subreaper), so that it can wait for all of them.
class Adoption {
 public:
  Adoption();
  ~Adoption();
  Adoption(const Adoption&) = delete;
  Adoption& operator=(const Adoption&) = delete;

 private:
  int before_ = 0;
};

// Kills all processes of the session with SIGKILL, which also ends stopped ones, and waits until none is left: then no
// thread of any of them runs and nothing is written any more. Needs an Adoption that began before the session.
// Returns the processes that have not exited within `patience`: they are blocked in the kernel, for example on a hung
// disk. `leader_status`, if not null, receives the wait status of the session leader if this call reaps it.
std::vector<pid_t> end_session(pid_t session, std::chrono::milliseconds patience, int* leader_status = nullptr);

// What the kernel says that a process does, and where in the kernel if it says that: "D (disk sleep) in nfs_wait_bit".
// Empty if the process is gone.
std::string process_state(pid_t pid);

}  // namespace hawser
