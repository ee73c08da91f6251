// Room for more addresses in this process, which `ulimit -v` bounds.
#pragma once

#include <cstdint>

namespace hawser {

// Whether the system would give so many bytes more now. Takes no memory; may be called from a signal handler.
bool addresses_left(std::int64_t bytes) noexcept;

// Before mpirun or MPI begins: where they are rejected addresses they end, or are ended by a signal, after lines about
// their own files and modules. Throws Error(does_not_fit) where there is not what they are about to take.
void expect_addresses_for_mpi();

}  // namespace hawser
