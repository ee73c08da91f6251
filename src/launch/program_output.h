// `output_of`: what another program prints, with a limit of time.
//
//   const ProgramOutput printed = output_of({"/usr/bin/mpirun", "--version"}, 3);
//   // {.text = "mpirun (Open MPI) 4.1.4\n..."}
//
// The program gets no input, its standard error is dropped, and it ends with this process.
#pragma once

#include <string>
#include <vector>

namespace hawser {

struct ProgramOutput {
  std::string text;  // standard output; "" if the program is missing, fails or takes longer than its time
  int error = 0;     // not 0: errno of a process that could not be created
};
// `words`: the program, a path or a name in PATH, and its arguments.
ProgramOutput output_of(const std::vector<std::string>& words, int seconds);

}  // namespace hawser
