// `MpiLibrary`: the functions and handles of Open MPI that the service calls. The library, libmpi.so.40 of Open MPI 4 or
// 5, is loaded when the first rank of a run starts: a run of one rank does not need it.
//
//   const MpiLibrary& mpi = mpi_library();
//   mpi.barrier(mpi.world);
//
// mpi.h defines handles such as MPI_COMM_WORLD as addresses of variables of the library, so they are looked up as the
// functions are. Sizes of types and values of constants are those of mpi.h, the same in both versions (Open MPI's
// promise for programs in C: https://docs.open-mpi.org/en/v5.0.x/version-numbering.html). Internal to comm/mpi.
#pragma once

#include <mpi.h>

namespace hawser::comm {

struct MpiLibrary {
  decltype(&MPI_Init_thread) init_thread = nullptr;
  decltype(&MPI_Finalize) finalize = nullptr;
  decltype(&MPI_Abort) abort = nullptr;
  decltype(&MPI_Comm_set_errhandler) comm_set_errhandler = nullptr;
  decltype(&MPI_Comm_rank) comm_rank = nullptr;
  decltype(&MPI_Comm_size) comm_size = nullptr;
  decltype(&MPI_Comm_get_attr) comm_get_attr = nullptr;
  decltype(&MPI_Isend) isend = nullptr;
  decltype(&MPI_Irecv) irecv = nullptr;
  decltype(&MPI_Iprobe) iprobe = nullptr;
  decltype(&MPI_Testsome) testsome = nullptr;
  decltype(&MPI_Get_count) get_count = nullptr;

  MPI_Comm world = nullptr;                // MPI_COMM_WORLD
  MPI_Datatype byte = nullptr;             // MPI_BYTE
  MPI_Request no_request = nullptr;        // MPI_REQUEST_NULL
  MPI_Errhandler errors_return = nullptr;  // MPI_ERRORS_RETURN
};

// UserError if the library is missing, or is not Open MPI's.
const MpiLibrary& mpi_library();

}  // namespace hawser::comm
