// `AttentionExchange`: the seam of context parallelism. It gives the attention of a layer the keys of other ranks, as
// parts that are merged by log-sum-exp.
//
// Example: one document of 8 rows, zig-zag over two context ranks. Rank 0 has rows 0, 1, 6 and 7, rank 1 rows 2..5.
// With parallel::AllGatherExchange, rank 0 computes
//
//   part 0   diagonal blocks, of its own rows: rows 0..1 see 0..1, rows 6..7 see 6..7, causal
//   part 1   off-diagonal blocks, of the rows gathered during part 0: rows 6..7 see 0..5, complete
//
// and a layer calls
//
//   const auto call = ctx.seams().attention->begin(ctx, mask, {.q = q, .k = k, .v = v, .o = o, .lse = lse});
//   for (int p = 0; p < call->parts(); ++p) {
//     const AttentionPart part = call->wait(p);   // its keys have arrived
//     ...                                         // ops::attention_forward on the compute stream
//     call->computed(p);
//   }
//   call->finish_queries();                       // o of this rank's rows is complete
//
// Context parallelism moves keys to queries (all-gather, ring), or queries, keys and outputs to ranks that have some of
// the heads each (all-to-all). The tensors of a part are this rank's, parts of them, or temporaries of the seam.
//
// The default implementation is one device: one part, the diagonal blocks of all rows. parallel::AllGatherExchange,
// RingExchange and AllToAllExchange are those of context parallelism, nn::KvCacheExchange that of generation.
// nn/seams.h says what holds for all seams.
#pragma once

#include <memory>
#include <vector>

#include "base/attention_mask.h"
#include "ops/attention/attention.h"

namespace hawser::nn {

class LayerContext;

// What one attention reads and writes. The stride of rows may exceed heads * D; that of heads is D.
struct AttentionTensors {
  TensorView q, k, v;  // [T, heads, D], [T, kv_heads, D], [T, kv_heads, D]
  // [T, heads, D] and float32 [heads, T]: forward writes them, backward reads them. What lse contains in between only
  // the exchange knows: the log-sum-exps of this rank's rows, or those of its heads.
  TensorView o, lse;
  TensorView d_o;         // backward: like o
  TensorView dq, dk, dv;  // backward: like q, k, v

  bool backward() const { return !d_o.empty(); }
  // Those of key-value heads [begin, begin + count), with their query heads.
  AttentionTensors kv_heads(std::int64_t begin, std::int64_t count) const;
  std::int64_t query_heads_per_kv_head() const { return q.size(1) / k.size(1); }
};

// One call of the attention op: some queries with some keys, which may be those of other ranks, in any order of rows.
struct AttentionPart {
  AttentionTensors tensors;  // o, dq, dk and dv are in q's dtype or float32
  // segments to window_halves have the meaning of the members of ops::AttentionCall, except `largest`.
  TensorView segments, segment_count;
  ops::SegmentForm form = ops::SegmentForm::any;
  std::vector<ops::StridedBlocks> blocks;
  // An upper bound of all ranks' `blocks`, if these differ; otherwise it is empty. It is at least as long as the
  // longest list, and its element i has at least the count, q_rows and k_rows of element i of every rank's list. The
  // workspace is sized for it, so that buffers have the same offsets on all ranks.
  std::vector<ops::StridedBlocks> largest;
  const std::vector<std::int32_t>* host_segments = nullptr;
  bool window_halves = false;
  // The mask between the positions of `segments`. It may differ from the layer's: off-diagonal blocks of a causal layer
  // are complete.
  AttentionMask mask;
  // The index of the first query head of `tensors` among the layer's heads on this tensor rank; the heads of `tensors`
  // follow each other. ALiBi and random numbers depend on it.
  std::int64_t first_head = 0;
  // i32 [Tq, 2] and i32 [Tk, 2]: BatchViews::row_ids of the query rows and of the key rows of `tensors`, for
  // AttentionConfig::dropout. They are empty unless the batch has them (BatchViews::attention_row_ids,
  // sequence_row_ids, source_row_ids).
  TensorView query_ids, key_ids;
  // True for the first of the parts with these query rows and heads; each row and head of a call is in one such part.
  // Its forward overwrites o and lse, and its backward dq; the other parts are merged into o and lse, and added to dq.
  bool first = true;
  // Forward. True: the op merges the part into o and lse, and changes only rows that see a key
  // (ops::AttentionCall::accumulate); if it is the first part, it does so into o = 0 and lse = -inf, which the seam has
  // written. False, and not the first part: the layer computes the part into temporaries of its own for all rows, o in
  // q's dtype, and merges them into tensors.o and tensors.lse with attention_combine.
  bool accumulate_o = false;
  bool accumulate_kv = false;  // backward: the part adds to dk and dv
  double visible = 0;          // query-key pairs for each query head of `tensors`, for OpRecord::flops (MaskViews)
};

class AttentionExchange {
 public:
  // The forward or the backward of one attention. It lives while the host enqueues its instruction.
  class Call {
   public:
    virtual ~Call() = default;
    virtual int parts() const = 0;
    // Makes the compute stream wait until what part p reads has arrived. The layer calls it once for each part, in
    // order.
    virtual AttentionPart wait(int p) = 0;
    // The layer calls it when it has enqueued the work of part p on the compute stream, before wait(p + 1).
    virtual void computed(int /*p*/) {}
    // The layer calls each once, after all parts: first finish_queries(), then in backward finish_keys(). Work that it
    // enqueues on the compute stream afterwards finds complete results of this rank's rows, which are undefined until
    // then: after finish_queries() o, or dq; after finish_keys() dk and dv, summed over the ranks.
    virtual void finish_queries() {}
    virtual void finish_keys() {}
  };

  virtual ~AttentionExchange() = default;

  // Begins the forward of an attention or, with d_o, its backward. mask: the layer's (AttentionConfig::mask). tensors:
  // this rank's rows, in its local order. It starts the communication: the earlier a layer calls it, the less its parts
  // wait. Work enqueued before the call has written all views but d_o, which may follow until wait(0).
  virtual std::unique_ptr<Call> begin(LayerContext&, const AttentionMask& mask, const AttentionTensors& tensors);
};

}  // namespace hawser::nn
