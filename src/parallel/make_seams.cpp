#include "parallel/make_seams.h"

#include "nn/kv_cache.h"
#include "parallel/context/all_gather_exchange.h"
#include "parallel/context/all_to_all_exchange.h"
#include "parallel/context/ring_exchange.h"
#include "parallel/tensor/sequence_parallel.h"
#include "parallel/tensor/tensor_parallel.h"
#include "parallel/tensor/tensor_sums.h"

namespace hawser::parallel {

namespace {

void set_up_tensor(const SeamChoices& choices, comm::Mesh& mesh, nn::Seams& seams) {
  if (mesh.sizes().tensor == 1) return;
  comm::Group& group = mesh.tensor();
  seams.tensor_reduce = std::make_shared<TensorSums>(group);
  if (choices.sequence_parallel) {
    seams.redistribute = std::make_shared<SequenceParallel>(group, choices.gathers_quantized);
  } else {
    seams.redistribute = std::make_shared<TensorParallel>(group);
  }
}

void set_up_context(const SeamChoices& choices, comm::Mesh& mesh, nn::Seams& seams) {
  const comm::MeshSizes& sizes = mesh.sizes();
  const DType reduce_dtype = choices.kv_reduce_dtype;
  if (choices.kv_cache) {
    HAWSER_CHECK(sizes.context == 1, "a KV cache with context parallelism");
    seams.attention = std::make_shared<nn::KvCacheExchange>();
    return;
  }
  std::shared_ptr<nn::AttentionExchange> rows;  // between ranks with different rows of the same heads
  if (sizes.context > sizes.context_heads) {
    comm::Group& ring = mesh.context();
    if (choices.ring_attention) {
      rows = std::make_shared<RingExchange>(ring, reduce_dtype);
    } else {
      HAWSER_CHECK(sizes.context_heads == 1, "gathered keys between groups of an all-to-all; they move in a ring");
      rows = std::make_shared<AllGatherExchange>(ring, choices.head_groups, reduce_dtype);
    }
  }
  if (sizes.context_heads > 1) {
    seams.attention = std::make_shared<AllToAllExchange>(mesh.context_heads(), reduce_dtype, rows);
  } else if (rows) {
    seams.attention = rows;
  }
}

void set_up_experts(const SeamChoices& choices, comm::Mesh& mesh, nn::Seams& seams) {
  seams.expert_row_bound = choices.expert_row_bound;
  if (mesh.sizes().expert == 1) return;
  HAWSER_CHECK(choices.token_exchange, "expert parallelism has no implementation yet");
  seams.tokens = choices.token_exchange(mesh.expert());
}

}  // namespace

nn::Seams make_seams(const SeamChoices& choices, comm::Mesh& mesh) {
  nn::Seams seams;
  set_up_tensor(choices, mesh, seams);
  set_up_context(choices, mesh, seams);
  set_up_experts(choices, mesh, seams);
  return seams;
}

}  // namespace hawser::parallel
