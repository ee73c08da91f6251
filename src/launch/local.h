// `launch_local`: starts the ranks of a run on this machine with mpirun, supervises them and reports in one line how
// the run ended.
//
//   if (!under_launcher() && ranks > 1) return launch_local({.ranks = ranks});
//
// Depends on nothing in the environment: works as root, with more ranks than cores, without a network, in any working
// directory. Standard output is rank 0's, byte for byte. Ranks get no standard input.
//
// Signals: the first SIGINT, SIGTERM, SIGHUP or SIGUSR1 asks all ranks to save and stop (stop.h), even if it arrives
// during startup; a second one, except SIGUSR1, kills them. Until all ranks have started MPI there is nothing to save,
// and the first one, except SIGUSR1, kills them. If the command does not save, the first signal kills them. All of this
// works while no process reads standard error: it loses only what is not read within a second after the end.
// Signals of the terminal reach only this process. When launch_local returns, no process of the run is left and nothing
// is written any more; if this process is killed, mpirun and the ranks exit too. A stopped mpirun, which would keep
// ranks from ending, is continued two seconds later.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "launch/mpirun_output.h"

namespace hawser {

struct LocalLaunch {
  int ranks = 1;
  int threads = 0;                   // CPU threads per rank; 0: cores / ranks, at least 1
  std::vector<std::string> command;  // program and arguments; empty: the command line of this process
  std::vector<std::string> options;  // arguments after those of `command`
  bool saves = false;                // ranks poll stop_requested(), save and exit
  // Time within which all ranks must start MPI and call note_started() (stop.h); then the run ends with an error.
  // mpirun may wait forever for a rank that it cannot start, and a rank for others inside MPI_Init.
  std::chrono::milliseconds start_limit = std::chrono::seconds(120);
  // Time within which the processes must exit when all ranks have called note_ended(); then they are killed.
  std::chrono::milliseconds exit_limit = std::chrono::seconds(120);
};

struct LocalEnd {
  int code = 0;
  bool signalled = false;  // a signal was answered; later ones, except SIGKILL, are ignored
};

// LocalEnd::code is the exit code of the run (base/error.h): the one that the ranks agreed on; 3 if a rank was killed,
// crashed, left or did not start; 130 if the run was interrupted, with a message unless the ranks saved. Throws
// UserError if mpirun is not installed or cannot be started, or if the hard limit of open files or the space in
// /dev/shm is too low for it, Error(does_not_fit) if there is not enough address space for mpirun.
LocalEnd launch_local(const LocalLaunch& launch);

// State of an interruption by the user.
enum class Interruption {
  none,
  asked,  // ranks were asked to save and stop
  ended,  // stopped at once: a second signal, or a command that does not save
};

// What is known of a run that has ended.
struct RunEnd {
  int status = 0;  // mpirun's exit code, or 128 + the signal that killed it
  Interruption interruption = Interruption::none;
  int failure = 0;                        // StopPage::failure
  bool started = true;                    // all ranks have started MPI
  std::vector<RankEnd> ends = {};         // according to mpirun
  std::vector<std::string> notices = {};  // other words of mpirun
  bool explained = false;                 // a rank has printed its error
};

// The run's exit code and the message that explains it ("" if the ranks have printed one).
struct Outcome {
  int code = 0;
  std::string line;
};
Outcome outcome(const RunEnd& end);

}  // namespace hawser
