// Checks that this process can reserve more address space (`ulimit -v`).
#pragma once

#include <cstdint>

namespace hawser {

// True if `bytes` more of address space can be reserved now. Allocates nothing; async-signal-safe.
bool addresses_left(std::int64_t bytes) noexcept;

// Call before mpirun or MPI_Init: without enough address space they exit, or die by a signal, after messages about
// their own files and modules. Throws Error(does_not_fit) if less is left than they need.
void expect_addresses_for_mpi();

}  // namespace hawser
