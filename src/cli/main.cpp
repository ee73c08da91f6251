#include "cli/commands.h"
#include "cli/exit.h"
#include "launch/launcher_environment.h"

int main(int argc, char** argv) {
  hawser::cli::open_standard_streams();
  hawser::cli::expect_to_run_out_of_memory();
  hawser::cli::expect_files_cut_short();
  hawser::let_waiting_threads_sleep(argv);
  return hawser::cli::run(argc, argv, hawser::cli::built_in_commands());
}
