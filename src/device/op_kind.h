// `OpKind`: what an op record's work is, for models of cost and for reports. They switch over it without a default, so
// that a new kind without a cost or a family does not compile. Neither does an op record without a kind.
#pragma once

namespace hawser {

class OpKind {
 public:
  enum Value {
    gemm,
    attention_forward,
    attention_backward,
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

// Whether FLOPs, not bytes, determine the time of a large one.
constexpr bool is_matrix_work(OpKind kind) {
  switch (kind) {
    case OpKind::gemm:
    case OpKind::attention_forward:
    case OpKind::attention_backward:
    case OpKind::attention_combine:
    case OpKind::loss:
      return true;
    case OpKind::norm:
    case OpKind::activation:
    case OpKind::rope:
    case OpKind::embedding:
    case OpKind::optimizer:
    case OpKind::gradient_norm:
    case OpKind::elementwise:
    case OpKind::copy:
    case OpKind::random:
    case OpKind::communication:
    case OpKind::transfer:
    case OpKind::host:
    case OpKind::keep:
    case OpKind::none:
      return false;
  }
  return false;
}

}  // namespace hawser
