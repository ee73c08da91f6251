#include "comm/nccl/nccl_version.h"

#include <nccl.h>

#include "base/cat.h"

namespace hawser::comm {

std::string nccl_version() {
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return "";
  // Since 2.9 the number is MAJOR * 10000 + MINOR * 100 + PATCH.
  return cat(version / 10000, ".", version % 10000 / 100, ".", version % 100);
}

}  // namespace hawser::comm
