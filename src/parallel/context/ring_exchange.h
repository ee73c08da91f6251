// `RingExchange`: context parallelism by moving keys and values from rank to rank (ring attention).
//
// Example: four ranks. Rank 1 computes the attention of its queries to its own keys while those of rank 0 arrive, to
// the keys of rank 0 while those of rank 3 arrive, and so on: in turn t it has the keys of rank (1 - t) mod 4. A rank
// has the keys of two ranks at a time, however many ranks there are.
//
//   causal        part 0: diagonal blocks; then the off-diagonal blocks of each turn, own keys first
//   not causal    each turn: all visible blocks
//
// With a window or distances each turn has a part for each chunk of the sequences (MaskViews::by_source), otherwise
// one. All parts of forward are merged into a float32 o, all of backward into a float32 dq. The gradients of a turn's
// keys go straight to their rank, in `kv_reduce_dtype`, while the next turn is computed, and are added there in float32
// in the order of the turns. Keys move again in backward.
//
// If each sequence is one document in a zig-zag (nn::BatchViews::uniform_diagonal) and the mask has no window, the
// blocks of a turn have equal sizes (ops::StridedBlocks): all queries with the first chunk of an earlier rank, or the
// second chunk's queries with all keys of a later rank. So every rank has as much work in every turn.
//
// Keys and values move in one message, [T, 2, key-value heads, D] of a rank's T rows, on the exchange stream; gradients
// are float32 or `kv_reduce_dtype`. Every rank calls Group::exchange in the same order, so no rank waits for another
// that waits for it. Reads MaskViews::by_source (batches::BatchSizes::source_segments); without these tables only a
// causal mask of window 1 has results.
// Source: arXiv 2310.01889; zig-zag: arXiv 2311.09431.
#pragma once

#include "comm/group.h"
#include "nn/seams.h"

namespace hawser::parallel {

class RingExchange : public nn::AttentionExchange {
 public:
  // `group` outlives this.
  explicit RingExchange(comm::Group& group, DType kv_reduce_dtype = DType::f32)
      : group_(group), kv_reduce_dtype_(kv_reduce_dtype) {}

  std::unique_ptr<Call> begin(nn::LayerContext&, const AttentionMask& mask,
                              const nn::AttentionTensors& tensors) override;

 private:
  comm::Group& group_;
  DType kv_reduce_dtype_;
};

}  // namespace hawser::parallel
