// `Seams`: the four parallelism hooks inside layers. Each default does nothing, so a layer with default seams is the
// single-device layer, which tests use as the reference.
//
// The host calls a seam while it enqueues an instruction. The seam enqueues its own work on the context's streams and
// orders it with events; the views it returns may be used on the compute stream from then on.
#pragma once

#include <memory>

#include "ops/attention/attention.h"

namespace hawser::nn {

class LayerContext;

// A boundary between tensor layouts inside a layer, with its conjugate in backward.
enum class Boundary {
  column_input,  // before a column-parallel GEMM: forward identity or row gather, backward sum or row scatter
  row_output,    // after a row-parallel GEMM: forward sum or row scatter, backward identity or row gather
};

class Redistribute {
 public:
  virtual ~Redistribute() = default;
  // x [T, C] may be changed in place; returns the view in the layout on the other side of the boundary.
  virtual TensorView forward(LayerContext&, Boundary, const TensorView& x) { return x; }
  virtual TensorView backward(LayerContext&, Boundary, const TensorView& dy) { return dy; }
};

// One call of the attention op: this rank's queries [T, H, D] against some keys.
struct AttentionPart {
  TensorView k, v;                     // [rows, kv_heads, D]
  TensorView segments, segment_count;  // which query rows see which of these keys (ops/attention/attention.h)
  ops::SegmentForm form = ops::SegmentForm::any;
  std::vector<ops::SegmentBatch> batches;  // as in ops::AttentionForward, like host_segments
  // If batches differ between ranks: batches at least as large as any rank's. The workspace is sized for them, so that
  // buffers have the same offsets on all ranks. Otherwise empty.
  std::vector<ops::SegmentBatch> largest;
  const std::vector<std::int32_t>* host_segments = nullptr;
  bool causal = true;
  int head_begin = 0, heads = 0;  // KV heads [head_begin, head_begin + heads) and their queries
  bool first = true;              // the first part of these heads writes o and lse; later ones are combined
  TensorView dk, dv;              // backward: this part's key and value gradients, float32 or k's dtype
  double visible = 0;             // expected visible query-key pairs per head: FLOPs of records and progress
};

// Attention as parts that are combined by log-sum-exp: first local keys, then keys of other ranks as they arrive.
class AttentionExchange {
 public:
  // One attention in one direction; exists while its instruction is enqueued.
  class Session {
   public:
    virtual ~Session() = default;
    virtual int parts() const = 0;
    // Makes the compute stream wait for part p's keys. Called once for each part, in order.
    virtual AttentionPart wait(int p) = 0;
    // Backward: called after the part's dk and dv have been enqueued.
    virtual void add_gradient(int /*p*/) {}
    // Backward: afterwards the dk and dv given to backward() hold the complete gradient of the local keys.
    virtual void finish() {}
  };
  virtual ~AttentionExchange() = default;
  // k, v [T, kv_heads, D]: this rank's keys and values, in its local row order; rows may be padded. Communication
  // starts here: the earlier a session begins, the less its parts wait.
  virtual std::unique_ptr<Session> forward(LayerContext&, const TensorView& k, const TensorView& v);
  virtual std::unique_ptr<Session> backward(LayerContext&, const TensorView& k, const TensorView& v,
                                            const TensorView& dk, const TensorView& dv);
};

// Dispatch of rows to experts and back. `rows` [R, C] are grouped by expert, counts [experts] has the rows of each.
class TokenExchange {
 public:
  struct Rows {
    TensorView rows;    // [capacity, C]: the rows of this rank's experts, grouped by expert
    TensorView counts;  // i32 [local experts]
  };
  virtual ~TokenExchange() = default;
  virtual Rows dispatch(LayerContext&, const TensorView& rows, const TensorView& counts) { return {rows, counts}; }
  // The inverse: brings `done`, in the layout that dispatch returned, back to the order of `rows`. Its backward is
  // dispatch.
  virtual TensorView combine(LayerContext&, const TensorView& done, const TensorView& counts) {
    (void)counts;
    return done;
  }
};

// Sum or maximum of a small device tensor over the ranks that hold parts of one tensor.
class Reduce {
 public:
  virtual ~Reduce() = default;
  virtual void sum(LayerContext&, const TensorView& data) { (void)data; }      // in place; backward: identity
  virtual void maximum(LayerContext&, const TensorView& data) { (void)data; }  // in place; no gradient
};

struct Seams {
  std::shared_ptr<Redistribute> redistribute = std::make_shared<Redistribute>();
  std::shared_ptr<AttentionExchange> attention = std::make_shared<AttentionExchange>();
  std::shared_ptr<TokenExchange> tokens = std::make_shared<TokenExchange>();
  std::shared_ptr<Reduce> reduce = std::make_shared<Reduce>();
};

}  // namespace hawser::nn
