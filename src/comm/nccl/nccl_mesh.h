// What may be measured about a mesh over NCCL; make_nccl_mesh of comm/mesh.h takes the defaults.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "comm/mesh.h"

namespace hawser::comm {

struct NcclOptions {
  // Gathers within registered memory by the copy engines; else, and outside of it, by NCCL's kernels.
  bool copy_engines = true;
  // Thread blocks of one communicator's kernels, each on a SM that a GEMM then lacks: more
  // than fill the links gain nothing. 0: NCCL's own choice (up to 32).
  int min_ctas = 0;
  int max_ctas = 16;
  // Hears of what has just been made, "shard:0-3/gather: communicator", to count what it took; null: nobody does.
  std::function<void(const std::string&)> made = nullptr;
};

std::unique_ptr<Mesh> make_nccl_mesh(World& world, const MeshSizes& sizes, double timeout_s, Device& device,
                                     const NcclOptions& options);

}  // namespace hawser::comm
