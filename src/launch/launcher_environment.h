// The launcher's environment: who started this process, its rank, terminal and threads. Everything comes from the
// environment variables of mpirun, srun or the local launcher (local.h); no other module reads them.
#pragma once

namespace hawser {

// True in a rank that mpirun or srun started: it must not launch ranks.
bool under_launcher();

// True in a rank that Hawser's own launcher started with mpirun (local.h).
bool launched_locally();

// Rank and number of ranks of this process; 0 of 1 without a launcher.
struct LaunchedAs {
  int rank = 0;
  int ranks = 1;
  int local_rank = 0;  // on this machine
  int local_ranks = 1;
};
LaunchedAs launched_as();

// Throws UserError if srun started several tasks without PMIx (srun --mpi=none): MPI would abort each of them with a
// long message about Slurm's build.
void check_launcher();

// The user's terminal, for the progress bar on standard error. In a rank, standard error is a pipe to the launcher,
// which passes the terminal's width in the environment.
struct Terminal {
  bool is_terminal = false;
  int columns = 80;
};
Terminal user_terminal();

// Standard output belongs to rank 0: on every other rank it is redirected to standard error.
void keep_stdout_for_rank_zero();

// CPU cores this process may use.
int usable_cores();

// CPU threads per rank if the recipe gives no number: cores / ranks on this machine, at least 1.
int threads_per_rank(int local_ranks);

// libgomp's threads spin while they wait, which takes cores from other processes and can make a step many times slower.
// libgomp reads its variables when it is loaded. So, unless the user has set a wait policy, this function sets
// OMP_WAIT_POLICY=passive and executes the program again. Call it first in main; it returns if there is nothing to
// change.
void let_waiting_threads_sleep(char** argv);

// Environment variables that the local launcher sets for its ranks.
inline constexpr char kLauncherVariable[] = "HAWSER_LAUNCHER";          // "local"
inline constexpr char kStopVariable[] = "HAWSER_STOP";                  // path of the file of stop_page.h
inline constexpr char kTerminalVariable[] = "HAWSER_TERMINAL_COLUMNS";  // set if stderr is a terminal

}  // namespace hawser
