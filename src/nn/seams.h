// The four places inside layers where parallelism may enter. Each default does nothing, so that a layer with default
// seams is the single-device layer: the oracle of every test.
//
// A seam is called from the host while a row is being enqueued. It enqueues its own work on the context's streams and
// orders them with events; the views it returns may be used on the compute stream from then on.
#pragma once

#include <memory>

#include "ops/attention/attention.h"

namespace hawser::nn {

class LayerContext;

// A boundary between layouts inside a layer, with its conjugate in backward.
enum class Boundary {
  column_input,  // before a column-parallel GEMM: forward identity (or gather of rows), backward sum (or scatter)
  row_output,    // behind a row-parallel GEMM: forward sum (or scatter of rows), backward identity (or gather)
};

class Redistribute {
 public:
  virtual ~Redistribute() = default;
  // x [T, C]: may be changed in place; returns the view in the layout on the other side of the boundary.
  virtual TensorView forward(LayerContext&, Boundary, const TensorView& x) { return x; }
  virtual TensorView backward(LayerContext&, Boundary, const TensorView& dy) { return dy; }
};

// One call of the attention op: queries [T, H, D] of this rank against some keys.
struct AttentionPart {
  TensorView k, v;                     // [rows, kv_heads, D]
  TensorView segments, segment_count;  // which query rows see which of these keys (ops/attention/attention.h)
  ops::SegmentForm form = ops::SegmentForm::any;
  std::vector<ops::SegmentBatch> batches;  // likewise, with host_segments
  // Where batches differ between ranks: batches no smaller than any rank's, which workspace is asked for, so that
  // buffers lie at the same places on all ranks. Else empty.
  std::vector<ops::SegmentBatch> largest;
  const std::vector<std::int32_t>* host_segments = nullptr;
  bool causal = true;
  int head_begin = 0, heads = 0;  // key-value heads [head_begin, head_begin + heads) and their queries
  bool first = true;              // the first part of these heads writes o and lse, later ones are combined
  TensorView dk, dv;              // backward: where this part's key and value gradients go, float32 or as k
  double visible = 0;             // expected visible query-key pairs a head: what meta records, and progress counts
};

// Attention as parts that are combined by log-sum-exp: local keys first, keys of other ranks when they have arrived.
class AttentionExchange {
 public:
  // One attention in one direction; lives while its row is enqueued.
  class Session {
   public:
    virtual ~Session() = default;
    virtual int parts() const = 0;
    // Makes the compute stream wait for part p's keys; parts are asked for in order, each once.
    virtual AttentionPart wait(int p) = 0;
    // Backward: the part's dk and dv have been enqueued.
    virtual void add_gradient(int /*p*/) {}
    // Backward: after it, the local dk and dv given to backward() hold the whole gradient of the local keys.
    virtual void finish() {}
  };
  virtual ~AttentionExchange() = default;
  // k, v [T, kv_heads, D]: this rank's keys and values, in its own row order; rows may be padded. They are on their way
  // from here on: the earlier a session begins, the less its first part waits.
  virtual std::unique_ptr<Session> forward(LayerContext&, const TensorView& k, const TensorView& v);
  virtual std::unique_ptr<Session> backward(LayerContext&, const TensorView& k, const TensorView& v,
                                            const TensorView& dk, const TensorView& dv);
};

// Rows to experts and back. `rows` [R, C] lie grouped by expert, counts [experts] says how many each.
class TokenExchange {
 public:
  struct Rows {
    TensorView rows;    // [capacity, C]: the rows of this rank's experts, grouped by expert
    TensorView counts;  // i32 [local experts]
  };
  virtual ~TokenExchange() = default;
  virtual Rows dispatch(LayerContext&, const TensorView& rows, const TensorView& counts) { return {rows, counts}; }
  // The inverse: `done` in the layout that dispatch returned, back in the order of `rows`. Its backward is dispatch.
  virtual TensorView combine(LayerContext&, const TensorView& done, const TensorView& counts) {
    (void)counts;
    return done;
  }
};

// Sum or maximum of a small device tensor over the ranks that hold parts of one whole.
class Reduce {
 public:
  virtual ~Reduce() = default;
  virtual void sum(LayerContext&, const TensorView& data) { (void)data; }      // in place; backward: identity
  virtual void maximum(LayerContext&, const TensorView& data) { (void)data; }  // in place; no gradient flows through
};

struct Seams {
  std::shared_ptr<Redistribute> redistribute = std::make_shared<Redistribute>();
  std::shared_ptr<AttentionExchange> attention = std::make_shared<AttentionExchange>();
  std::shared_ptr<TokenExchange> tokens = std::make_shared<TokenExchange>();
  std::shared_ptr<Reduce> reduce = std::make_shared<Reduce>();
};

}  // namespace hawser::nn
