#include "launch/launcher_environment.h"

#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "base/error.h"

namespace hawser {
namespace {

const char* variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

// The first of the variables that is a whole number; `otherwise` if none is.
int number(std::initializer_list<const char*> names, int otherwise) {
  for (const char* name : names) {
    const char* value = variable(name);
    if (value == nullptr) continue;
    char* end = nullptr;
    const long parsed = std::strtol(value, &end, 10);
    if (end != value && *end == '\0' && parsed >= 0 && parsed < (1 << 24)) return static_cast<int>(parsed);
  }
  return otherwise;
}

// Batch scripts have SLURM_PROCID too; only a step started by srun has SLURM_STEP_NUM_TASKS.
bool in_slurm_step() {
  return variable("SLURM_STEP_NUM_TASKS") != nullptr && variable("SLURM_PROCID") != nullptr;
}

// Parses Slurm's list of tasks per node, "2(x3),1", for node `index`; 0 if the list does not tell.
int tasks_of_node(const char* list, int index) {
  while (list != nullptr && *list != '\0') {
    char* end = nullptr;
    const long tasks = std::strtol(list, &end, 10);
    if (end == list || tasks < 1) return 0;
    long nodes = 1;
    if (std::strncmp(end, "(x", 2) == 0) {
      nodes = std::strtol(end + 2, &end, 10);
      if (*end != ')' || nodes < 1) return 0;
      ++end;
    }
    if (index < nodes) return static_cast<int>(tasks);
    index -= static_cast<int>(nodes);
    list = *end == ',' ? end + 1 : nullptr;
  }
  return 0;
}

}  // namespace

bool under_launcher() {
  return variable("OMPI_COMM_WORLD_SIZE") != nullptr || variable("PMIX_RANK") != nullptr || in_slurm_step();
}

bool launched_locally() {
  // Without a rank's variables it is left from elsewhere, such as a copied environment.
  return variable(kLauncherVariable) != nullptr && under_launcher();
}

LaunchedAs launched_as() {
  LaunchedAs as;
  if (!under_launcher()) return as;
  as.rank = number({"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID"}, 0);
  as.ranks = std::max(1, number({"OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"}, 1));
  as.local_rank = number({"OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"}, 0);
  const int here = tasks_of_node(variable("SLURM_STEP_TASKS_PER_NODE"), number({"SLURM_NODEID"}, 0));
  as.local_ranks = std::max(1, number({"OMPI_COMM_WORLD_LOCAL_SIZE"}, here > 0 ? here : as.ranks));
  return as;
}

namespace {

// torchrun starts each rank as a process of its own that would train alone.
void check_torchrun() {
  if (variable("TORCHELASTIC_RUN_ID") == nullptr || launched_locally() || under_launcher()) return;
  const int ranks = number({"WORLD_SIZE"}, 1), rank = number({"RANK"}, 0);
  if (ranks == 1) return;
  const Problem problem{.what = cat("torchrun started ", ranks, " processes, of which each would train alone"),
                        .hint = cat("hawser fit RECIPE --ranks ", number({"LOCAL_WORLD_SIZE"}, ranks),
                                    ", which starts its own ranks, or mpirun or srun for several hosts")};
  throw UserError(rank == 0 ? problem.line() : "");
}

}  // namespace

void check_launcher() {
  check_torchrun();
  if (variable("OMPI_COMM_WORLD_SIZE") != nullptr || variable("PMIX_RANK") != nullptr || !in_slurm_step()) return;
  const LaunchedAs as = launched_as();
  if (as.ranks == 1) return;
  const Problem problem{.what = cat("srun started ", as.ranks, " tasks without PMIx, which MPI needs"),
                        .hint = "srun --mpi=pmix"};
  throw UserError(as.rank == 0 ? problem.line() : "");  // printed by rank 0 only
}

Terminal user_terminal() {
  if (launched_locally()) {
    const int columns = number({kTerminalVariable}, 0);
    return {columns > 0, columns > 0 ? columns : 80};
  }
  if (isatty(STDERR_FILENO) == 0) return {};
  winsize size{};
  const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return {true, known ? size.ws_col : 80};
}

void keep_stdout_for_rank_zero() {
  if (launched_as().rank != 0) dup2(STDERR_FILENO, STDOUT_FILENO);
}

void let_waiting_threads_sleep(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  if (setenv("OMP_WAIT_POLICY", "passive", 1) != 0) return;
  // By its own path, because it becomes the process name.
  std::array<char, 4096> self{};
  const ssize_t size = readlink("/proc/self/exe", self.data(), self.size() - 1);
  if (size > 0) execv(self.data(), argv);
  execv("/proc/self/exe", argv);  // fallback if the file was removed; without /proc the program runs on, only slower
}

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
}

int threads_per_rank(int local_ranks) {
  return std::max(1, usable_cores() / std::max(1, local_ranks));
}

}  // namespace hawser
