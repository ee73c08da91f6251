// `AllGatherExchange`: context parallelism by all-gathering keys and values.
//
// Every rank of the context group holds some rows of each sequence, given by the chunk table. Forward gathers K and V
// of all ranks and puts them into sequence order. Backward gathers them again, so that they exist for one layer at a
// time, and reduce-scatters their gradients.
//
// Attention is the diagonal part (a piece of a document against itself; local keys, no communication) and off-diagonal
// blocks (a document's earlier rows), which wait for the gather. Key-value heads may be gathered in groups: the first
// off-diagonal block then starts before the last key has arrived, and its gradients are reduced while the next is
// computed. If each sequence is one document in a zig-zag (nn::BatchViews::uniform_diagonal), the off-diagonal blocks
// of a rank's two chunks are two ops::StridedBlocks.
//
// With a window W, an off-diagonal block has at most the last W - 1 keys before its piece and the first W - 1 queries
// of the piece (nn::MaskViews). All keys are gathered anyway, unless W is 1: then there is no off-diagonal block.
//
// If the mask is not causal, there is no diagonal part: each piece attends to all of its document in gathered keys.
//
// Gradients of gathered keys are reduced in `reduce_dtype`. float32: attention's results are summed unrounded. bf16
// (with bf16 compute): each rank's share, a sum over its queries, is rounded once, and once more in between if both of
// its chunks see the key. The shares are added in float32 in rank order, and that sum is added to the local keys'
// gradient.
// Source: Llama 3 (arXiv 2407.21783) section 3.3.2; combining by log-sum-exp: ops/attention/attention.h.
#pragma once

#include "comm/group.h"
#include "nn/seams.h"

namespace hawser::parallel {

class AllGatherExchange : public nn::AttentionExchange {
 public:
  // `group` outlives this. If head_groups does not divide kv_heads, the largest divisor below it is used.
  explicit AllGatherExchange(comm::Group& group, int head_groups = 1, DType reduce_dtype = DType::f32)
      : group_(group), head_groups_(head_groups), reduce_dtype_(reduce_dtype) {}

  std::unique_ptr<Call> begin(nn::LayerContext&, const AttentionMask& mask,
                              const nn::AttentionTensors& tensors) override;

 private:
  comm::Group& group_;
  int head_groups_;
  DType reduce_dtype_;
};

}  // namespace hawser::parallel
