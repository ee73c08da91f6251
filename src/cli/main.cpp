#include "cli/commands.h"

int main(int argc, char** argv) {
  return hawser::cli::run(argc, argv, hawser::cli::built_in_commands());
}
