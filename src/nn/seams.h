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
//
// The ranks of a pipeline stage share one plan, which one of them makes: a seam has equally many pieces or parts, asks
// for the same temps and enqueues the same ops in the same order on each of them. Only peers, what tables contain, and
// which rows a piece has (Redistribute) may depend on the rank. Two ranks that pass data to each other use
// Group::exchange: with a send and a receive in an order that depends on the rank, the plan may give what is received
// the bytes of what is still to be sent.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "base/attention_mask.h"
#include "nn/scaled.h"
#include "ops/attention/attention.h"

namespace hawser::nn {

class LayerContext;
struct SavePolicy;

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
// All ranks have equally many pieces, and piece p of each has equally many rows. With Order::any these may be other
// rows on each rank, so that a caller must not communicate between them.
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
    // Makes the compute stream wait until piece p has arrived. Called once for each piece, in order, or for none. The
    // rows have x's dtype, and its scale.
    virtual RowPiece wait(int p) = 0;
    // All rows. Makes the compute stream wait for all of them. Called after the wait() of all pieces, or alone; more
    // than once, too.
    virtual Scaled all() = 0;
    // Called once, after the last wait() or all(). Work enqueued on the compute stream afterwards may overwrite x,
    // which other ranks may read until then. What wait() and all() returned is readable in this instruction, as long as
    // x, which it may be a part of, is not overwritten.
    virtual void finish() {}
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
    // Called once, after all pieces; other work of the layer may be enqueued in between, to run during the sum's tail.
    // Work enqueued on the compute stream afterwards finds the result in sum()'s y.
    virtual void finish() = 0;
  };
  virtual ~Redistribute() = default;
  // x [RowCounts::residual, C], not changed. If its rows are divided, a scale is one float32, equal on all ranks.
  virtual std::unique_ptr<Gather> gather(LayerContext&, const Scaled& x);
  // y = residual + the sum. y, residual [RowCounts::residual, C], dense; y is undefined until finish(), residual may be
  // empty and is read until then. The parts have y's dtype, and so has the sum before residual is added.
  virtual std::unique_ptr<Sum> sum(LayerContext&, const TensorView& y, const TensorView& residual = {},
                                   Order order = Order::any);
  // True: a column-parallel Linear's backward computes dx before dW, so that the gather of x overlaps the former
  // and the tail of dx's sum the latter. False: dW first, whose operands are then free for dx.
  virtual bool overlaps() const { return false; }
  // True: an x or a dy whose scale all ranks have beforehand (LinearFormat::fp8_delayed in a training step) is rounded
  // before its gather, by each rank its own rows: the gather moves FP8, a byte for each element. Not where an adapter,
  // or of dy a bias, reads the matrix itself. The results have the bits of false: rounded after the gather.
  virtual bool gathers_quantized() const { return false; }
};

// What one attention reads and writes. Rows may be wider than their heads, whose strides are D.
struct AttentionTensors {
  TensorView q, k, v;     // [T, heads, D], [T, kv_heads, D], [T, kv_heads, D]
  TensorView o, lse;      // [T, heads, D], float32 [heads, T]: written by forward, read by backward
  TensorView d_o;         // backward: like o
  TensorView dq, dk, dv;  // backward: like q, k, v
  // AttentionExchange::saved_tensors, in this order: written by forward, read by backward. In forward all are empty if
  // this pass saves none: attention runs again before backward, or there is no backward.
  std::vector<TensorView> saved = {};

  // Those of key-value heads [begin, begin + count), with their query heads, without `saved`.
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
  // complete.
  AttentionMask mask;
  // Index of the first query head of `tensors` among the heads of the layer, which are those of this tensor rank; the
  // heads of `tensors` follow each other. For what depends on the head: ALiBi, random numbers.
  std::int64_t first_head = 0;
  // i32 [Tq, 2], i32 [Tk, 2]: BatchViews::row_ids of the query rows and of the key rows of `tensors`, for
  // AttentionConfig::dropout. Empty unless the batch has them (BatchViews::attention_row_ids, sequence_row_ids,
  // source_row_ids).
  TensorView query_ids, key_ids;
  // True for the first of the parts with these query rows and heads: each (row, head) of a call is in one such part. It
  // writes o and lse of all of them; in backward, it writes dq. The results of the other parts are merged into o and
  // lse; in backward, they are added to dq.
  bool first = true;
  // Forward: true: the op merges the part into o and lse, and changes only rows that see a key
  // (ops::AttentionCall::accumulate); if it is the first one, into o = 0 and lse = -inf, which the seam has written.
  // false: a part that is not the first one writes temporaries for all rows, o in q's dtype, which attention_combine
  // merges.
  bool accumulate_o = false;
  bool accumulate_kv = false;  // backward: the part adds to dk and dv
  double visible = 0;          // query-key pairs per query head of `tensors` for OpRecord::flops: of MaskViews
};

// The attention of a layer on this tensor rank.
struct AttentionShape {
  AttentionMask mask;
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
};

// A dense tensor that an exchange saves from forward for backward.
struct ExchangeTensor {
  const char* name;
  DType dtype;
  Shape shape;
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
    // Called once each, after all parts, finish_keys() in backward only, after finish_queries(). Work enqueued on the
    // compute stream afterwards finds complete results of this rank's rows: of finish_queries() o and lse, or dq; of
    // finish_keys() dk and dv, summed over ranks. Until then they are undefined.
    virtual void finish_queries() {}
    virtual void finish_keys() {}
  };
  virtual ~AttentionExchange() = default;
  // What forward writes for backward, such as keys that have arrived, which then need not move again. The executor
  // saves it with the layer's tensors (nn::saved_specs), offloads it with them, and passes it in
  // AttentionTensors::saved. rows: RowCounts::full; dtype: of q, k and v. An exchange may save less under a policy that
  // recomputes q, k and v. Equal on all ranks.
  virtual std::vector<ExchangeTensor> saved_tensors(const AttentionShape&, std::int64_t /*rows*/, DType /*dtype*/,
                                                    const SavePolicy&) const {
    return {};
  }
  // mask: the layer's (AttentionConfig::mask). tensors: this rank's rows, in its local order.
  // These functions start the communication: the earlier they are called, the less the parts wait. The work that writes
  // d_o may be enqueued later, before wait(0).
  virtual std::unique_ptr<Call> forward(LayerContext&, const AttentionMask& mask, const AttentionTensors& tensors);
  virtual std::unique_ptr<Call> backward(LayerContext&, const AttentionMask& mask, const AttentionTensors& tensors);
};

// Expert parallelism: each rank has some of the experts. Sends the rows of its tokens to the ranks of their experts,
// and what these compute back. P ranks, E experts, P divides E: rank p has experts [p * L, (p + 1) * L), L = E / P. T
// rows of tokens of this rank, padding included, K experts per token; both are equal on all ranks. Each row of experts
// belongs to an assignment (t, k).
//
//   dispatch   row of (t, k) = x[t,:], or round(w[t,k] * x[t,:])                            tokens to experts
//   combine    y[t,:] = residual[t,:] + sum over k of (w[t,k] or 1) * row of (t,k)           experts to tokens
//
//   tokens [T, C]            of this rank
//   rows of experts [S, C]   of all ranks' tokens, by expert, of this rank's L
// Each without weights is the gradient of the other. The weight of an assignment is also sent alone: to its expert with
// its row, and its gradient back (Weights::sent).
//
// Layers know neither how often a token is sent nor where rows are summed. One row for each assignment may be sent, of
// which the token's rank computes the sum; or one row for each rank that has experts of the token, which sums their
// rows before one returns. combine's sum is in float32. An implementation may add parts of it, such as a rank's, that
// it has rounded to the dtype of the rows. Which parts these are, and their order, depends on the routing alone. The
// default and PiecesExchange (tests/support) have one part, k ascending: the bits of ops::combine_rows.
//
// The layer computes the rows of experts in pieces, so that the communication of one overlaps the GEMMs of another.
// Piece p has the experts [p * L / pieces, (p + 1) * L / pieces) and, of each tensor [S, C], the rows
// [p * S / pieces, (p + 1) * S / pieces): the host knows which they are. In these, the rows of the piece's expert i are
// [offsets[i], offsets[i + 1]): those of rank 0's tokens, in their order, then those of rank 1's, and so on; then zeros
// up to a multiple of ops::kGroupRows. S is a bound: no rank knows on the host how many rows there are.
//
// The seam keeps nothing from one call to the next: between a route() and the calls that follow from it are those of
// other layers and micro-batches, and of this one's later passes. What they need is in Routing, as saved tensors of the
// layer. route() is called once, in forward.
class TokenExchange {
 public:
  // What an implementation asks layers for, equal on all ranks.
  struct Options {
    int pieces = 1;          // divides L
    std::int64_t state = 0;  // elements of Routing::state
    // Rows are quantized on the token's rank and dispatched in FP8 where GEMMs read them so and one scale is shared by
    // all ranks (LinearFormat::fp8_delayed in training). Rows with Weights::applied, which are rounded after they are
    // multiplied, and rows that are combined have the compute dtype.
    bool quantized_rows = false;
  };
  // What the host knows of a routing.
  struct Sizes {
    std::int64_t tokens = 0, per_token = 0, experts = 0, local_experts = 0;  // T, K, E, L
    std::int64_t capacity = 0;  // ops::ExpertPlan::capacity, of each rank's tokens; 0: no token is dropped
    Options options;
    // Limits S / pieces to row_bound times the mean T K / pieces, rounded up, and a group of padding for each expert;
    // 0: the most rows that there can be. If a piece of any rank has more, route() sends nothing in all calls: counts
    // are 0, combine() adds nothing, and LayerContext::refusal() has Refusal::expert_rows. The step then runs again
    // with a larger plan (plan::Layout::expert_row_bound). 0 if one rank has all experts.
    double row_bound = 0;

    std::int64_t ranks() const { return experts / local_experts; }              // P
    std::int64_t rows() const;                                                  // R, of ops/moe/dispatch.h
    std::int64_t expert_rows() const { return options.pieces * piece_rows(); }  // S
    std::int64_t piece_experts() const { return local_experts / options.pieces; }
    std::int64_t piece_rows() const;
    std::int64_t max_sent_to_expert() const;  // the most rows from one rank to one expert, without padding
    double expected_sent() const;             // of a piece from one rank to another, on average
  };
  // Of one layer and micro-batch. The tensors are dense and on the device. If one rank has all experts, those that
  // route() writes are empty, but expert_offsets is `offsets`, and S = R.
  struct Routing {
    Sizes sizes;
    // What the router has decided, and ops::ExpertPlan. `experts` and `rows` are empty in backward_weight, and so is
    // `weights` unless the call has Weights::applied.
    TensorView experts;      // i32 [T, K]; negative: none
    TensorView weights;      // float32 [T, K]: w
    TensorView rows;         // i32 [T, K]; ops::kNoRow: the assignment has no expert, or is dropped
    TensorView offsets;      // i32 [E + 1]
    TensorView assignments;  // i32 [R]
    // Written by route(). token_rows is empty in backward_weight.
    TensorView counts;  // i32 [2, E]: the assignments of this rank's tokens to each expert, and, [P, L], those of
                        // each rank's tokens to each local expert; without padding
    TensorView expert_offsets;  // i32 [pieces, L / pieces + 1]
    TensorView token_rows;      // i32 [S, 1]: r if row r of its piece is a token's, otherwise ops::kNoRow
    // i32 [Options::state]: of the implementation, for its later calls; only it reads them, so that they may be the bits
    // of float32. Empty if 0.
    TensorView state;

    // Of piece p.
    TensorView piece_offsets(int p) const;                             // i32 [L / pieces + 1]
    TensorView piece_rows(const TensorView& of_experts, int p) const;  // of a tensor [S, ...]
  };
  // What a call does with the weights of assignments.
  enum class Weights {
    none,
    applied,  // multiplies rows by them, as above
    sent,     // dispatch: the weight of each row arrives with it; combine: a float32 of each row returns with it
  };
  // Of a piece. weights: float32 [S / pieces, 1], only with Weights::sent. Both dense.
  struct PieceRows {
    TensorView rows;  // [S / pieces, C]
    TensorView weights;
  };
  // Rows of tokens on their way to their experts. Lives while the host enqueues its instruction.
  class Dispatch {
   public:
    virtual ~Dispatch() = default;
    // Makes the compute stream wait until piece p has arrived. Rows from the last of the piece's offsets on are
    // undefined. Called once for each piece, in order.
    virtual PieceRows wait(int p) = 0;
  };
  // Rows of experts on their way to their tokens.
  class Combine {
   public:
    virtual ~Combine() = default;
    // Where the caller writes piece p. Padding is not read. Called once for each piece, in order.
    virtual PieceRows target(int p) = 0;
    // Called after the work that writes piece p has been enqueued on the compute stream, before target(p + 1).
    virtual void written(int p) = 0;
    // With Weights::sent, called once, after all pieces. values float32 [T, K], dense: what the caller has written to
    // PieceRows::weights for each assignment; 0 if it has no row. Work enqueued on the compute stream afterwards may
    // read them.
    virtual void finish_weights(const TensorView& values) = 0;
    // Called once, last. y [T, C], float32 or bf16, and residual, float32 or bf16, which may be y; empty: 0. Work
    // enqueued on the compute stream afterwards finds the result in y.
    virtual void finish(const TensorView& residual, const TensorView& y) = 0;
  };

  virtual ~TokenExchange() = default;
  // For a layer with these sizes, `options` excepted. Not asked if one rank has all experts.
  virtual Options options(const Sizes&) const { return {}; }
  virtual void route(LayerContext&, const Routing&);
  // Both start one exchange. Between the start and the last call of one there may be calls of others, in the same order
  // on all ranks.
  // x [T, C], dense: float32 or bf16; or with Options::quantized_rows and without Weights::applied FP8, C even, whose
  // bits arrive as they are. Rows of tokens without an expert are not read. x may be overwritten by work enqueued on
  // the compute stream after the last wait().
  virtual std::unique_ptr<Dispatch> dispatch(LayerContext&, const Routing&, const TensorView& x, Weights weights);
  // The rows have this dtype (float32 or bf16) and number of columns.
  virtual std::unique_ptr<Combine> combine(LayerContext&, const Routing&, DType dtype, std::int64_t columns,
                                           Weights weights);

  // What an exchange of one row for each assignment has on the token's rank, in the order of ops/moe/dispatch.h; all on
  // the compute stream.
  // Temps: x in the rows [R, C] of its assignments, times the weights with Weights::applied; the weights [R, 1].
  static TensorView assignment_rows(LayerContext&, const Routing&, const TensorView& x, Weights weights);
  static TensorView assignment_weights(LayerContext&, const Routing&);
  // Combine::finish and finish_weights, of rows [R, C] and of values [R, 1].
  static void sum_assignments(LayerContext&, const Routing&, const TensorView& rows, Weights weights,
                              const TensorView& residual, const TensorView& y);
  static void assignment_values(LayerContext&, const Routing&, const TensorView& of_rows, const TensorView& values);
};

// All-reduce, in place, of a small device tensor that each tensor-parallel rank has computed from its part of a split
// tensor: e.g. the maximum of logits that are split by vocabulary. Gradients are reduced elsewhere
// (program::Op::reduce). No implementation yet besides the default.
class TensorReduce {
 public:
  virtual ~TensorReduce() = default;
  virtual void sum(LayerContext&, const TensorView& data) { (void)data; }      // backward: identity
  virtual void maximum(LayerContext&, const TensorView& data) { (void)data; }  // no gradient
  // all [ranks * R, C] = the parts [R, C] of the ranks, one after another. `part` may be this rank's own part of `all`.
  // Without a gradient.
  virtual void gather(LayerContext&, const TensorView& part, const TensorView& all);
};

struct Seams {
  std::shared_ptr<Redistribute> redistribute = std::make_shared<Redistribute>();
  std::shared_ptr<AttentionExchange> attention = std::make_shared<AttentionExchange>();
  std::shared_ptr<TokenExchange> tokens = std::make_shared<TokenExchange>();
  std::shared_ptr<TensorReduce> tensor_reduce = std::make_shared<TensorReduce>();
  double expert_row_bound = 0;  // TokenExchange::Sizes::row_bound, of the plan (plan::Layout::expert_row_bound)
};

}  // namespace hawser::nn
