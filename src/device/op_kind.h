// `OpKind`: what an op record's work is, for models of cost (`bound_of`) and for reports (profile/work_family.h). Both
// switch over it without a default, so that a new kind without a cost or a family does not compile. Neither does an op
// record without a kind.
#pragma once

namespace hawser {

class OpKind {
 public:
  enum Value {
    gemm,
    gemm_fp8,        // with FP8 operands
    gemm_fp8_block,  // which have scales of blocks
    attention_forward,
    attention_backward,
    attention_tiled_forward,  // in our own kernel on tensor cores, for what cuDNN does not support
    attention_tiled_backward,
    attention_plain_forward,  // in the plain kernel, for what neither supports
    attention_plain_backward,
    attention_combine,
    loss,  // the head's GEMMs and the cross entropy
    norm,
    activation,
    rope,
    embedding,
    optimizer,
    gradient_norm,
    elementwise,    // residual additions and biases
    copy,           // copies, casts, fills, gathers and scatters on the device
    random,         // initial values
    communication,  // collectives
    transfer,       // between host and device
    host,           // on the host, in the order of a stream
    keep,           // no work: keeps what it reads until the end of the step
    none,           // no work: a trace item that is no op
  };
  constexpr OpKind(Value value) : value_(value) {}
  constexpr operator Value() const { return value_; }

 private:
  Value value_;
};

// What the time of a large op is bound by: FLOPs at one of these rates, or the bytes that it moves.
enum class Bound {
  gemm,
  gemm_fp8,
  gemm_fp8_block,
  attention_forward,
  attention_backward,
  attention_tiled_forward,
  attention_tiled_backward,
  attention_plain_forward,
  attention_plain_backward,
  attention_combine,
  bytes,
};

constexpr Bound bound_of(OpKind kind) {
  switch (kind) {
    case OpKind::gemm:
    case OpKind::loss:
      return Bound::gemm;
    case OpKind::gemm_fp8:
      return Bound::gemm_fp8;
    case OpKind::gemm_fp8_block:
      return Bound::gemm_fp8_block;
    case OpKind::attention_forward:
      return Bound::attention_forward;
    case OpKind::attention_backward:
      return Bound::attention_backward;
    case OpKind::attention_tiled_forward:
      return Bound::attention_tiled_forward;
    case OpKind::attention_tiled_backward:
      return Bound::attention_tiled_backward;
    case OpKind::attention_plain_forward:
      return Bound::attention_plain_forward;
    case OpKind::attention_plain_backward:
      return Bound::attention_plain_backward;
    case OpKind::attention_combine:
      return Bound::attention_combine;
    case OpKind::norm:
    case OpKind::activation:
    case OpKind::rope:
    case OpKind::embedding:
    case OpKind::optimizer:
    case OpKind::gradient_norm:
    case OpKind::elementwise:
    case OpKind::copy:
    case OpKind::random:
    case OpKind::communication:  // of a group of one rank, which copies; others go by their collective
    case OpKind::transfer:
    case OpKind::host:
    case OpKind::keep:
    case OpKind::none:
      break;
  }
  return Bound::bytes;
}

}  // namespace hawser
