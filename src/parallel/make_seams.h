// `make_seams`: the implementation of each seam (nn/seams.h) for a mesh, with those of all parallelisms.
//
//   seams.redistribute, tensor_reduce    tensor/     if the mesh has tensor ranks
//   seams.attention                      context/    if the mesh has context ranks; nn::KvCacheExchange in generation
//     keys of the ring's ranks: all-gathered, or ring attention; heads over MeshSizes::context_heads: all-to-all
//   seams.tokens                         given: no expert parallelism is implemented yet
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "comm/mesh.h"
#include "nn/seams.h"

namespace hawser::parallel {

struct SeamChoices {
  bool sequence_parallel = false;          // tensor ranks divide the rows of the residual
  bool gathers_quantized = true;           // and gather in FP8 what is rounded (SequenceParallel)
  bool ring_attention = false;             // keys of the ring move from rank to rank, and are not all-gathered
  int head_groups = 1;                     // of AllGatherExchange
  DType kv_reduce_dtype = DType::f32;      // of gradients of keys and values between ranks
  bool kv_cache = false;                   // a pass of generation
  std::optional<double> expert_row_bound;  // nn::TokenExchange::Sizes::row_bound

  // Tests hand in the exchange of expert parallelism, which has no implementation here.
  std::function<std::shared_ptr<nn::TokenExchange>(comm::Group& expert)> token_exchange = {};
};

// `mesh` outlives the seams. InternalError for what has no implementation: experts over ranks without an exchange
// above, context parallelism with a KV cache, and gathered keys between the groups of an all-to-all.
nn::Seams make_seams(const SeamChoices& choices, comm::Mesh& mesh);

}  // namespace hawser::parallel
