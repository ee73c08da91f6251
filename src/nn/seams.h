// `Seams`: the four parallelism hooks inside layers. Each default is the single-device behaviour: a layer with default
// seams is the single-device layer, which tests use as the reference.
//
// In use are two replacements of the attention seam: parallel::AllGatherExchange (context parallelism) and, for
// generation, KvCacheExchange (nn/kv_cache.h). The other three seams have no implementation yet besides the default;
// the tests (tests/support) have their own.
//
// The host calls a seam while it enqueues an instruction. The seam enqueues its own work on the streams of the
// LayerContext and orders it with events; work that is enqueued on the compute stream afterwards may use the views that
// it returns.
#pragma once

#include <memory>

#include "base/attention_mask.h"
#include "nn/scaled.h"
#include "ops/attention/attention.h"

namespace hawser::nn {

class LayerContext;

// Rows [first_row, first_row + rows of the view) of a matrix with RowCounts::full rows.
struct RowPiece {
  Scaled rows;
  std::int64_t first_row = 0;
};

// Tensor parallelism: before and after the Linears whose weights are sliced over the tensor ranks, and the embedding.
//
//                       column-parallel Linear (QKV, gate, up, head)    row-parallel Linear (output, down)
//   slice of W          rows                                            columns
//   forward             gather x                                        sum y
//   backward            gather x for dW, sum dx                         gather dy
//
// Without sequence parallelism all ranks have all rows: gather is the identity, and sum an all-reduce. With it
// (Megatron-LM, arXiv 2205.05198) the residual's rows are divided: gather is an all-gather, and sum a reduce-scatter.
// Rows of tensor rank i: [i * residual, (i + 1) * residual) of the full ones.
//
// The seam decides how many pieces there are and in which order the caller computes them, so that the communication of
// one overlaps the GEMM of another. Each full row is in exactly one piece. The default: one piece, the argument itself.
class Redistribute {
 public:
  enum class Order {
    any,   // each rank's own
    same,  // equal pieces in one order on all ranks: the caller communicates between them
  };
  // One gather. Lives while the host enqueues its instruction.
  class Gather {
   public:
    virtual ~Gather() = default;
    virtual int pieces() const = 0;
    // Makes the compute stream wait until piece p has arrived. Called once for each piece, in order; or not at all.
    virtual RowPiece wait(int p) = 0;
    // All rows. Makes the compute stream wait for all of them.
    virtual Scaled all() = 0;
  };
  // One sum of a matrix over the ranks.
  class Sum {
   public:
    virtual ~Sum() = default;
    virtual int pieces() const = 0;
    // Where the caller writes these rows of its own part of the sum. Called once for each piece, in order.
    virtual RowPiece target(int p) = 0;
    // Called after the work that writes piece p has been enqueued on the compute stream, before target(p + 1).
    virtual void written(int p) = 0;
    // Called once, after all pieces. Work enqueued on the compute stream afterwards finds the sum in sum()'s y.
    virtual void finish() = 0;
  };
  virtual ~Redistribute() = default;
  // x [RowCounts::residual, C], not changed. If its rows are divided, a scale is one float32, equal on all ranks.
  virtual std::unique_ptr<Gather> gather(LayerContext&, const Scaled& x);
  // y [RowCounts::residual, C], dense and undefined until finish(). The parts have its dtype.
  virtual std::unique_ptr<Sum> sum(LayerContext&, const TensorView& y, Order order = Order::any);
};

// What one attention reads and writes. Rows may be wider than their heads, whose strides are D.
struct AttentionTensors {
  TensorView q, k, v;     // [T, heads, D], [T, kv_heads, D], [T, kv_heads, D]
  TensorView o, lse;      // [T, heads, D], float32 [heads, T]: written by forward, read by backward
  TensorView d_o;         // backward: like o
  TensorView dq, dk, dv;  // backward: like q, k, v

  // Those of key-value heads [begin, begin + count), with their query heads.
  AttentionTensors kv_heads(std::int64_t begin, std::int64_t count) const;
  std::int64_t query_heads_per_kv_head() const { return q.size(1) / k.size(1); }
};

// One call of the attention op: some queries with some keys, which may be those of other ranks, in any order of rows.
struct AttentionPart {
  AttentionTensors tensors;                       // o, dq, dk and dv: in q's dtype or float32
  TensorView segments, segment_count;             // see ops::AttentionCall
  ops::SegmentForm form = ops::SegmentForm::any;  // see ops::AttentionCall
  std::vector<ops::StridedBlocks> blocks;         // see ops::AttentionCall
  // Empty if `blocks` is the same on all ranks. Otherwise an upper bound of all ranks' `blocks`: at least
  // as long as the longest list, and element i has at least the count, q_rows and k_rows of element i of every rank's
  // list. The workspace is sized for it, so that
  // buffers have the same offsets on all ranks.
  std::vector<ops::StridedBlocks> largest;
  const std::vector<std::int32_t>* host_segments = nullptr;  // see ops::AttentionCall
  bool window_halves = false;                                // see ops::AttentionCall
  // Between the positions of `segments`. It may differ from the layer's mask: off-diagonal blocks of a causal layer are
  // complete, and positions that count every R-th row of a sequence have a window of their own.
  AttentionMask mask;
  // Index of the first query head of `tensors` among the heads of the layer, which are those of this tensor rank; the
  // heads of `tensors` follow each other. For what depends on the head: ALiBi, sinks, random numbers.
  std::int64_t first_head = 0;
  // i32 [Tq, 2], i32 [Tk, 2]: BatchViews::row_ids of the query rows and of the key rows of `tensors`, for dropout of
  // probabilities. Empty unless the batch has them (BatchViews::row_ids, sequence_row_ids, source_row_ids).
  TensorView query_ids, key_ids;
  // True for the first of the parts with these queries. It writes o and lse; in backward, it writes dq. The results of
  // the other parts are merged into o and lse; in backward, they are added to dq.
  bool first = true;
  // Forward: true: the op merges the part into o and lse, and changes only rows that see a key
  // (ops::AttentionCall::accumulate); if it is the first one, into o = 0 and lse = -inf, which the seam has written.
  // false: a part that is not the first one writes temporaries for all rows, o in q's dtype, which attention_combine
  // merges.
  bool accumulate_o = false;
  bool accumulate_kv = false;  // backward: the part adds to dk and dv
  double visible = 0;          // query-key pairs per query head of `tensors` for OpRecord::flops: of MaskViews
};

// Attention of one layer, as parts that are combined by log-sum-exp. Context parallelism moves keys to queries
// (all-gather, ring), or queries, keys and outputs to ranks that have some heads each (all-to-all). A part's tensors
// are this rank's, parts of them, or temporaries that the seam exchanges.
//
// AllGatherExchange: part 0 is the diagonal blocks of all heads, whose keys are local. The other parts are the
// off-diagonal blocks, one part for each group of key-value heads whose keys are gathered together. They are gathered
// from all ranks (this one included) while earlier parts run.
class AttentionExchange {
 public:
  // One call of this seam: the forward or the backward of one attention. Lives while the host enqueues its instruction.
  class Call {
   public:
    virtual ~Call() = default;
    virtual int parts() const = 0;  // number of parts
    // Makes the compute stream wait until what part p reads has arrived. Called once for each part, in order.
    virtual AttentionPart wait(int p) = 0;
    // Called after the work of part p has been enqueued on the compute stream, before wait(p + 1).
    virtual void computed(int /*p*/) {}
    // Called once each, after all parts, finish_keys() in backward only, after finish_queries(). Work enqueued on the compute stream afterwards
    // finds complete results of this rank's rows: of finish_queries() o and lse, or dq; of finish_keys() dk and dv,
    // summed over ranks. Until then they are undefined.
    virtual void finish_queries() {}
    virtual void finish_keys() {}
  };
  virtual ~AttentionExchange() = default;
  // mask: the layer's (AttentionConfig::mask). tensors: this rank's rows, in its local order.
  // These functions start the communication: the earlier they are called, the less the parts wait. The work that writes
  // d_o may be enqueued later, before wait(0).
  virtual std::unique_ptr<Call> forward(LayerContext&, const AttentionMask& mask, const AttentionTensors& tensors);
  virtual std::unique_ptr<Call> backward(LayerContext&, const AttentionMask& mask, const AttentionTensors& tensors);
};

// Expert parallelism: each rank has some of the experts. Sends the rows of its tokens to the ranks of their experts,
// and what these compute back. P ranks, E experts: rank p has experts [p * L, (p + 1) * L), L = E / P. T tokens of this
// rank, K experts per token, R = ops::expert_rows(T, K, E); T and K are equal on all ranks.
//
//   rows of tokens [R, C]    as ops/moe/dispatch.h orders them: by expert, of all E
//   rows of experts [S, C]   of all ranks' tokens, by expert, of this rank's L. The rows of local expert l are
//                            [expert_offsets[l], expert_offsets[l + 1]): those of rank 0's tokens, in their order, then
//                            those of rank 1's, and so on; then zeros up to a multiple of ops::kGroupRows.
// No token is dropped: S is the most rows that there can be. No rank knows on the host how many there are.
//
// The seam keeps nothing from one call to the next: between a route() and the calls that follow from it are those of
// other layers and micro-batches, and of this one's later passes. What they need is in Routing, as saved tensors of the
// layer. route() is called once, in forward.
class TokenExchange {
 public:
  // Of one layer and micro-batch. The tensors are dense and on the device. If one rank has all experts, those that
  // route() writes are empty, but expert_offsets is `offsets`, and S = R.
  struct Routing {
    std::int64_t rows = 0, expert_rows = 0;  // R, S
    std::int64_t max_sent = 0;               // the most rows for one rank, without padding: T min(K, L)
    TensorView offsets;                      // i32 [E + 1]: ops::ExpertPlan::offsets
    TensorView assignments;                  // i32 [R]: ops::ExpertPlan::assignments
    // Written by route(). token_rows is empty in backward_weight.
    TensorView counts;          // i32 [2, E]: the rows that this rank sends for each expert, and, [P, L], those that it
                                // receives from each rank for each local expert; without padding
    TensorView expert_offsets;  // i32 [L + 1]
    TensorView token_rows;      // i32 [S, 1]: r if row r of the rows of experts is a token's, otherwise ops::kNoRow
  };
  // S for E / L ranks with T tokens each: a token has its experts only once.
  static std::int64_t max_expert_rows(std::int64_t tokens, std::int64_t per_token, std::int64_t experts,
                                      std::int64_t local_experts);

  virtual ~TokenExchange() = default;
  virtual void route(LayerContext&, const Routing&);
  // Returns the rows of experts that belong to these rows of tokens, [S, C] of the same dtype, dense. `rows` is
  // ops::dispatch_rows's result; its padding is not read. Rows of the result from expert_offsets[L] on are undefined.
  // Work enqueued on the compute stream afterwards may overwrite `rows`, which the result may be. The gradient is
  // combine().
  virtual TensorView dispatch(LayerContext&, const Routing&, const TensorView& rows);
  // The inverse: returns the rows of tokens that belong to these rows of experts, [R, C]. Padding of the result is
  // undefined, and that of `rows` is not read. The gradient is dispatch().
  virtual TensorView combine(LayerContext&, const Routing&, const TensorView& rows);
};

// All-reduce, in place, of a small device tensor that each tensor-parallel rank has computed from its part of a split
// tensor: e.g. the maximum of logits that are split by vocabulary. Gradients are reduced elsewhere
// (program::Op::reduce). No implementation yet besides the default.
class TensorReduce {
 public:
  virtual ~TensorReduce() = default;
  virtual void sum(LayerContext&, const TensorView& data) { (void)data; }      // backward: identity
  virtual void maximum(LayerContext&, const TensorView& data) { (void)data; }  // no gradient
};

struct Seams {
  std::shared_ptr<Redistribute> redistribute = std::make_shared<Redistribute>();
  std::shared_ptr<AttentionExchange> attention = std::make_shared<AttentionExchange>();
  std::shared_ptr<TokenExchange> tokens = std::make_shared<TokenExchange>();
  std::shared_ptr<TensorReduce> tensor_reduce = std::make_shared<TensorReduce>();
};

}  // namespace hawser::nn
