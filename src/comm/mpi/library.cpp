#include "comm/mpi/library.h"

#include <dlfcn.h>

#include "base/error.h"
#include "base/text.h"

namespace hawser::comm {

namespace {

constexpr const char* kName = "libmpi.so.40";

[[noreturn]] void refuse(const std::string& why) {
  throw UserError(Problem{.what = cat("Open MPI, which connects the ranks, cannot be loaded: ", why),
                          .hint = "apt-get install openmpi-bin, pip install 'hawser-trainer[mpi]', or --ranks 1"});
}

MpiLibrary load() {
  // Global: Open MPI's own plugins look for its symbols.
  void* const library = dlopen(kName, RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) refuse(dlerror());
  const auto find = [&](auto& to, const char* name) {
    void* const address = dlsym(library, name);
    if (address == nullptr) refuse(cat(kName, " has no ", name));
    to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(address);
  };
  MpiLibrary out;
  find(out.init_thread, "MPI_Init_thread");
  find(out.finalize, "MPI_Finalize");
  find(out.abort, "MPI_Abort");
  find(out.comm_set_errhandler, "MPI_Comm_set_errhandler");
  find(out.comm_rank, "MPI_Comm_rank");
  find(out.comm_size, "MPI_Comm_size");
  find(out.comm_get_attr, "MPI_Comm_get_attr");
  find(out.isend, "MPI_Isend");
  find(out.irecv, "MPI_Irecv");
  find(out.iprobe, "MPI_Iprobe");
  find(out.testsome, "MPI_Testsome");
  find(out.get_count, "MPI_Get_count");
  find(out.world, "ompi_mpi_comm_world");
  find(out.byte, "ompi_mpi_byte");
  find(out.no_request, "ompi_request_null");
  find(out.errors_return, "ompi_mpi_errors_return");
  return out;
}

}  // namespace

const MpiLibrary& mpi_library() {
  static const MpiLibrary library = load();
  return library;
}

}  // namespace hawser::comm
