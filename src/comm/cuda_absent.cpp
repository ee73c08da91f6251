// Replaces comm/cuda/ and comm/nccl/ in builds without CUDA.
#include "base/error.h"
#include "comm/cuda/counted_rows_cuda.h"
#include "comm/cuda/reduce_cuda.h"
#include "comm/mesh.h"
#include "comm/nccl/nccl_version.h"

namespace hawser::comm {

namespace {

[[noreturn]] void reject() {
  throw UserError(Problem{.what = "no GPU: this binary was built without CUDA",
                          .hint = "pip install 'hawser-trainer[cuda]', or build with cmake --preset cuda"});
}

}  // namespace

std::string nccl_version() {
  return "";
}

void reduce_members_cuda(void*, int, const MemberRuns&, DType, Reduction, std::int64_t, std::byte*, DType, bool) {
  reject();
}

void copy_counted_rows_cuda(void*, std::span<const CountedSource>, std::int64_t, const CountedRows&, std::int64_t) {
  reject();
}

std::unique_ptr<Mesh> make_nccl_mesh(World&, const MeshSizes&, double, Device&) {
  reject();
}

}  // namespace hawser::comm
