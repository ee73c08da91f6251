// Starts the ranks of a run on this machine with mpirun, gives the launcher all it needs, watches over it and says in
// one line how it ended.
//
//   if (!under_launcher() && ranks > 1) return launch_local({.ranks = ranks});
//
// Needs nothing of the environment: works as root, with more ranks than cores, without a network, with any cwd.
// Standard output is rank 0's, byte for byte. Ranks read nothing from standard input.
//
// Signals: the first SIGINT, SIGTERM, SIGHUP or SIGUSR1 asks every rank to save and stop (stop.h), however early it
// comes; a second one, SIGUSR1 excepted, ends them at once. Where the command does not save, the first ends it. A
// terminal's signals reach this process alone. When launch_local returns no process of the run is left, and nothing is
// written any more; when this process is killed, mpirun and the ranks end too.
#pragma once

#include <string>
#include <vector>

#include "launch/mpirun_output.h"

namespace hawser {

struct LocalLaunch {
  int ranks = 1;
  int threads = 0;                   // CPU threads a rank; 0: cores / ranks, at least 1
  std::vector<std::string> command;  // program and arguments; empty: this process's own command line
  bool saves = false;                // ranks ask stop_requested(), save and end
};

// The launcher that will be used. Throws UserError when none is installed.
std::string find_mpirun();

// Returns the exit code of the run (base/error.h): what the ranks agreed on; 3 where one was killed, crashed or left;
// 130 where the run was interrupted, which a line explains unless the ranks saved. Throws UserError when mpirun is not
// installed, Error(does_not_fit) where mpirun would be refused memory.
int launch_local(const LocalLaunch& launch);

// How far a user's interruption went.
enum class Interruption {
  none,
  asked,  // to save and stop
  ended,  // after that, or of a command that saves nothing
};

// The run's exit code and the line that explains it ("" when ranks have said enough). `status` is mpirun's exit code,
// or 128 + the signal that ended it.
struct Outcome {
  int code = 0;
  std::string line;
};
Outcome outcome(int status, Interruption interruption, const std::vector<RankEnd>& ends,
                const std::vector<std::string>& notices, bool explained);

}  // namespace hawser
