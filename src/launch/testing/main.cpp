// Rank program of launch_test: `launch_test_rank WHAT [ARGUMENT]` starts MPI and ends as WHAT selects.
#include <mpi.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "launch/launcher_environment.h"
#include "launch/stop.h"

// MPI keeps memory until the process exits; leak checks would report it.
extern "C" const char* __asan_default_options() {  // NOLINT(bugprone-reserved-identifier): the sanitizer's name
  return "detect_leaks=0";
}

namespace {

void pause_ms(int ms) {
  usleep(static_cast<useconds_t>(ms) * 1000);
}

constexpr int kUnreported = 17;  // of a library that calls exit()

int run(const std::string& what, const std::string& argument, int rank, int ranks) {
  const int middle = ranks - 1;  // the rank that misbehaves
  if (what == "code") {
    if (rank == 0) std::fprintf(stderr, "hawser: a.yaml: this and that\n");
    if (rank == 1) std::fprintf(stderr, "hawser: a.yaml: this and that\n");
    std::fflush(stderr);
    MPI_Finalize();
    const int code = std::atoi(argument.c_str());
    if (code == 0) {
      hawser::note_ended();
    } else if (code != kUnreported) {
      hawser::note_failed(code);
    }
    return code;
  }
  if (what == "abort" && rank == middle) {
    hawser::note_failed(std::atoi(argument.c_str()));
    MPI_Abort(MPI_COMM_WORLD, std::atoi(argument.c_str()));
  }
  if (what == "kill" && rank == middle) raise(SIGKILL);
  if (what == "leave" && rank == middle) _exit(0);
  if (what == "output") {
    if (rank == 0) {
      for (int i = 0; i < 50000; ++i) std::printf("%d\n", i);
      std::printf("no newline at the end");
    }
    std::fprintf(stderr, "rank %d\r%s\n", rank, std::getenv("OMP_NUM_THREADS"));
  }
  if (what == "errors") {
    for (int i = 0; i < 400000; ++i) std::fprintf(stderr, "%d\n", i);
  }
  if (what == "wait" || what == "slow") {
    // Ranks write their pids to ARGUMENT.RANK; after a stop request rank 0 prints a line and all return 130.
    std::ofstream(argument + "." + std::to_string(rank)) << getpid();
    while (!hawser::stop_requested()) pause_ms(20);
    if (what == "slow") pause_ms(1500);  // mpirun kills a rank one second after it has asked it to end
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) std::fprintf(stderr, "saved\n");
    MPI_Finalize();
    return 130;
  }
  if (what == "pause") {  // writes the pids, too, and ends by itself
    std::ofstream(argument + "." + std::to_string(rank)) << getpid();
    pause_ms(1500);
  }
  if (what == "stubborn" || what == "abort" || what == "kill" || what == "leave") {
    if (!argument.empty() && what == "stubborn") std::ofstream(argument + "." + std::to_string(rank)) << getpid();
    for (;;) pause_ms(1000);
  }
  MPI_Finalize();
  if (what != "unnoted") hawser::note_ended();
  if (what == "stays" && rank == middle) raise(SIGSTOP);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  // A rank that mpirun cannot start.
  if (argc > 1 && std::string(argv[1]) == "unstarted") {
    for (;;) pause_ms(1000);
  }
  hawser::end_when_interrupted();
  hawser::catch_stop_signals();
  // Rank 0 waits in MPI_Init for the others.
  if (argc > 1 && std::string(argv[1]) == "absent" && hawser::launched_as().rank > 0) {
    for (;;) pause_ms(1000);
  }
  // Each writes its pid to ARGUMENT.RANK, starts when there is a file ARGUMENT.go, and continues as "wait".
  const bool late = argc > 2 && std::string(argv[1]) == "late";
  if (late) {
    const std::string name = argv[2];
    std::ofstream(name + "." + std::to_string(hawser::launched_as().rank)) << getpid();
    while (access((name + ".go").c_str(), F_OK) != 0) pause_ms(20);
  }
  MPI_Init(&argc, &argv);
  hawser::note_started();
  int rank = 0;
  int ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  return run(late ? "wait" : argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : "", rank, ranks);
}
