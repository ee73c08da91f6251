// `NcclOptions`: settings of a mesh over NCCL that benchmarks vary; make_nccl_mesh of comm/mesh.h uses the defaults.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "comm/mesh.h"

namespace hawser::comm {

struct NcclOptions {
  // Gathers within registered memory use copy engines; otherwise, and outside of it, NCCL's kernels.
  bool copy_engines = true;
  // Thread blocks of one communicator's kernels. Each takes an SM from a concurrent GEMM, and more than fill the links
  // gain nothing. 0: NCCL's own choice (up to 32).
  int min_ctas = 0;
  int max_ctas = 16;
  // Called with what was just created, such as "shard:0-3/gather: communicator", to measure its memory. May be null.
  std::function<void(const std::string&)> made = nullptr;
};

std::unique_ptr<Mesh> make_nccl_mesh(World& world, const MeshSizes& sizes, double timeout_s, Device& device,
                                     const NcclOptions& options);

}  // namespace hawser::comm
