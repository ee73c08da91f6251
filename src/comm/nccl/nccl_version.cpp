#include "comm/nccl/nccl_version.h"

#include <nccl.h>

#include "base/cat.h"

namespace hawser::comm {

std::string nccl_version() {
  int version = 0;
  return ncclGetVersion(&version) == ncclSuccess ? nccl_version_text(version) : "";
}

std::string nccl_version_text(int code) {
  // Since 2.9 the number is MAJOR * 10000 + MINOR * 100 + PATCH.
  return cat(code / 10000, ".", code % 10000 / 100, ".", code % 100);
}

}  // namespace hawser::comm
