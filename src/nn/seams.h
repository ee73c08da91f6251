// `Seams`: the four parallelism hooks inside layers. Each default is the single-device behaviour: a layer with default
// seams is the single-device layer, which tests use as the reference.
//
// In use are two replacements of the attention seam: parallel::AllGatherExchange (context parallelism) and, for
// generation, KvCacheExchange (nn/kv_cache.h). The other three seams have no implementation yet besides the default;
// the tests (tests/dist/seams) have their own.
//
// The host calls a seam while it enqueues an instruction. The seam enqueues its own work on the streams of the
// LayerContext and orders it with events; work that is enqueued on the compute stream afterwards may use the views that
// it returns.
#pragma once

#include <memory>

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
// (Megatron-LM, arXiv 2205.05198) the residual's rows are divided: gather is an all-gather, and sum a reduce-scatter. Rows
// of tensor rank i: [i * residual, (i + 1) * residual) of the full ones.
//
// The seam decides how many pieces there are and in which order the caller computes them, so that the communication of one
// overlaps the GEMM of another. Each full row is in exactly one piece. The default: one piece, the argument itself.
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
  // x [RowCounts::residual, C], not changed. Its scale, if there is one, is one float32 or belongs to the matrix.
  virtual std::unique_ptr<Gather> gather(LayerContext&, const Scaled& x);
  // y [RowCounts::residual, C], dense and undefined until finish(). The parts have its dtype.
  virtual std::unique_ptr<Sum> sum(LayerContext&, const TensorView& y, Order order = Order::any);
};

// One call of the attention op: this rank's queries [T, H, D] with some of the keys.
struct AttentionPart {
  TensorView k, v;                                // [rows, heads, D]
  TensorView segments, segment_count;             // see ops::AttentionCall
  ops::SegmentForm form = ops::SegmentForm::any;  // see ops::AttentionCall
  std::vector<ops::StridedBlocks> blocks;         // see ops::AttentionCall
  // Empty if `blocks` is the same on all ranks. Otherwise an upper bound of all ranks' `blocks`: at least
  // as long as the longest list, and element i has at least the count, q_rows and k_rows of element i of every rank's
  // list. The workspace is sized for it, so that
  // buffers have the same offsets on all ranks.
  std::vector<ops::StridedBlocks> largest;
  const std::vector<std::int32_t>* host_segments = nullptr;  // see ops::AttentionCall
  bool causal = true;                                        // see ops::AttentionCall
  bool window_halves = false;                                // see ops::AttentionCall
  int head_begin = 0, heads = 0;  // key-value heads [head_begin, head_begin + heads), with their query heads
  // True for the first of the parts with these heads. It writes o and lse; in backward, it writes dq. The results of
  // the other parts are merged into o and lse by attention_combine; in backward, they are added to dq.
  bool first = true;
  TensorView dk, dv;   // backward: this part's key and value gradients, float32 or k's dtype
  double visible = 0;  // query-key pairs per head for OpRecord::flops: of WindowViews
};

// Attention of one layer, as parts that are combined by log-sum-exp. With context parallelism, part 0 is the
// diagonal blocks of all heads, whose keys are local. The other parts are the off-diagonal blocks, one part for each
// group of key-value heads whose keys are gathered together. They are gathered from all ranks (this one included) while
// earlier parts run.
class AttentionExchange {
 public:
  // One call of this seam: the forward or the backward of one attention. Lives while the host enqueues its instruction.
  class Call {
   public:
    virtual ~Call() = default;
    virtual int parts() const = 0;  // number of parts
    // Makes the compute stream wait until part p's keys have arrived. Called once for each part, in order.
    virtual AttentionPart wait(int p) = 0;
    // Backward: called after the work that writes part p's dk and dv has been enqueued.
    virtual void add_gradient(int /*p*/) {}
    // Called once, after all parts. Backward: work enqueued on the compute stream afterwards finds in backward()'s dk
    // and dv the complete gradients of this rank's keys and values, summed over ranks.
    virtual void finish() {}
  };
  virtual ~AttentionExchange() = default;
  // window: the layer's (AttentionConfig::window).
  // k, v [T, kv_heads, D]: this rank's keys and values, in its local row order; the row stride may exceed kv_heads * D.
  // dk, dv: outputs of k's shape and dtype, whose contents are undefined until Call::finish(); strides as for k and v.
  // These functions start the communication: the earlier they are called, the less the parts wait.
  virtual std::unique_ptr<Call> forward(LayerContext&, std::int64_t window, const TensorView& k, const TensorView& v);
  virtual std::unique_ptr<Call> backward(LayerContext&, std::int64_t window, const TensorView& k, const TensorView& v,
                                         const TensorView& dk, const TensorView& dv);
};

// Expert parallelism: sends tokens to the ranks of their experts and back. No layer calls it yet; no implementation
// besides the default.
class TokenExchange {
 public:
  // Tokens on the rank of their experts.
  struct Dispatched {
    // The tokens sent to this rank's experts, grouped by expert: [rows, C]. `rows` is at least their number, so that
    // none is dropped; the other rows are undefined.
    TensorView tokens;
    TensorView counts;  // i32 [local experts]: number of tokens of each
  };
  virtual ~TokenExchange() = default;
  // tokens [R, C]: this rank's tokens, grouped by expert. counts i32 [experts]: number of tokens of each.
  virtual Dispatched dispatch(LayerContext&, const TensorView& tokens, const TensorView& counts) {
    return {tokens, counts};
  }
  // The inverse of dispatch(). expert_output has a row for each row of Dispatched::tokens; the result has
  // a row for each row of dispatch()'s argument `tokens`. `counts` is dispatch()'s argument. In backward, dispatch and
  // combine swap places.
  virtual TensorView combine(LayerContext&, const TensorView& expert_output, const TensorView& counts) {
    (void)counts;
    return expert_output;
  }
};

// All-reduce, in place, of a small device tensor that each tensor-parallel rank has computed from its part of a split
// tensor: e.g. the maximum of logits that are split by vocabulary. Gradients are reduced elsewhere
// (program::Op::reduce). No layer calls it yet; no implementation besides the default.
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
