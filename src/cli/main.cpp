#include "cli/commands.h"
#include "cli/exit.h"
#include "launch/environment.h"

int main(int argc, char** argv) {
  hawser::let_waiting_threads_sleep(argv);
  hawser::cli::expect_to_run_out_of_memory();
  return hawser::cli::run(argc, argv, hawser::cli::built_in_commands());
}
