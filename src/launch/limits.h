// Limits of this machine that mpirun does not report, or only after a long wait. Each function throws UserError.
// Internal to launch/.
#pragma once

#include <string>

namespace hawser {

// mpirun and the launcher hold about four files for each rank, and a rank that they cannot connect is waited for
// without end. Raises the soft limit as far as needed; the ranks inherit it.
void expect_open_files(int ranks);

// Open MPI extends files of 4 MiB that its ranks share; under a lower limit they abort without a word, and mpirun
// waits. Raises the soft limit as far as needed.
void expect_file_size();

// `folder`: the run's scratch folder. Open MPI maps files there, 8 MiB for all ranks and about 100 KiB for each:
// without space it aborts, or ranks wait in MPI_Init. The need is 8 MiB + ranks * 128 KiB, rounded up to MiB.
void expect_shared_memory(const std::string& folder, int ranks);

}  // namespace hawser
