// Who started this process, and what it may assume of the terminal. All that is known comes from the environment that
// mpirun, srun or our own launcher (local.h) sets; no other room reads it.
#pragma once

namespace hawser {

// True in a rank that mpirun or srun started: it must not start ranks of its own.
bool under_launcher();

// This process's place among those started together; one of one when no launcher started it.
struct LaunchedAs {
  int rank = 0;
  int ranks = 1;
  int local_rank = 0;  // on this machine
  int local_ranks = 1;
};
LaunchedAs launched_as();

// Throws UserError where srun started several tasks without the means to find one another (srun --mpi=none): MPI would
// end each of them with a page about how Slurm is built.
void check_launcher();

// The user's terminal, for a progress bar on standard error. In a rank standard error is a pipe to the launcher, which
// says what lies behind it.
struct Terminal {
  bool is_terminal = false;
  int columns = 80;
};
Terminal user_terminal();

// Standard output belongs to rank 0: on every other rank it is pointed at standard error.
void keep_stdout_for_rank_zero();

// Cores this process may use.
int usable_cores();

// Threads a rank should take when the recipe leaves it open: cores / ranks on this machine, at least 1.
int threads_per_rank(int local_ranks);

// libgomp's threads spin while they wait, which takes the core from whoever else could work: with other processes on
// the machine a step becomes many times slower. It reads its variables when it is loaded, so where the user has chosen
// nothing this starts the program once more, with passive waiting as the choice. First of all in main; returns when
// there is nothing to change.
void let_waiting_threads_sleep(char** argv);

// Names of the variables by which our launcher talks to its ranks.
inline constexpr char kLauncherVariable[] = "HAWSER_LAUNCHER";          // "local"
inline constexpr char kStopVariable[] = "HAWSER_STOP";                  // the file of stop_page.h
inline constexpr char kTerminalVariable[] = "HAWSER_TERMINAL_COLUMNS";  // set where stderr ends at a terminal

}  // namespace hawser
