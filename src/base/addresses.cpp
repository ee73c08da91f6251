#include "base/addresses.h"

#include <sys/mman.h>

#include "base/error.h"
#include "base/units.h"

namespace hawser {
namespace {

// Open MPI 4.1 takes 210 MiB. With less it skips modules, with a line for each, and the ranks later take twice as much.
constexpr std::int64_t kOfMpi = std::int64_t{256} << 20;

}  // namespace

bool addresses_left(std::int64_t bytes) noexcept {
  const auto size = static_cast<std::size_t>(bytes);
  void* const reserved = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return false;
  munmap(reserved, size);
  return true;
}

void expect_addresses_for_mpi() {
  if (addresses_left(kOfMpi)) return;
  throw Error(ExitCode::does_not_fit, cat("memory: cannot allocate ", format_bytes(Bytes(kOfMpi)),
                                          " to start MPI; try a higher limit (ulimit -v), or --ranks 1"));
}

}  // namespace hawser
