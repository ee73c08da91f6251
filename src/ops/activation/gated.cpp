#include "ops/activation/gated.h"

namespace hawser::ops {

void gated_forward(Stream& stream, const GatedForward& args) {
  const char* const kOp = args.kind == Gate::silu ? "swiglu_forward" : "geglu_forward";
  HAWSER_CHECK(args.y.rank() == 2, kOp, ": y must be a matrix");
  expect(kOp, "y", args.y, {DType::f32, DType::bf16}, args.y.shape(), Rows::padded);
  expect(kOp, "gate_up", args.gate_up, {args.y.dtype()}, {args.y.size(0), 2 * args.y.size(1)}, Rows::padded);
  expect_apart(kOp, args.y, args.gate_up);
  run(stream, {kOp, OpKind::activation}, {args.gate_up}, {args.y}, 5.0 * static_cast<double>(args.y.elements()), args,
      HAWSER_BACKENDS(gated_forward));
}

void gated_backward(Stream& stream, const GatedBackward& args) {
  const char* const kOp = args.kind == Gate::silu ? "swiglu_backward" : "geglu_backward";
  HAWSER_CHECK(args.dy.rank() == 2, kOp, ": dy must be a matrix");
  const Shape wide{args.dy.size(0), 2 * args.dy.size(1)};
  expect(kOp, "dy", args.dy, {DType::f32, DType::bf16}, args.dy.shape(), Rows::padded);
  expect(kOp, "gate_up", args.gate_up, {args.dy.dtype()}, wide, Rows::padded);
  expect(kOp, "dgate_up", args.dgate_up, {args.dy.dtype()}, wide, Rows::padded);
  expect_apart_or_same(kOp, args.dgate_up, args.gate_up);
  expect_apart(kOp, args.dgate_up, args.dy);
  if (!args.y.empty()) {
    expect(kOp, "y", args.y, {args.dy.dtype()}, args.dy.shape(), Rows::padded);
    expect_apart_or_same(kOp, args.y, args.dy);
    expect_apart(kOp, args.y, args.gate_up);
    expect_apart(kOp, args.y, args.dgate_up);
  }
  run(stream, {kOp, OpKind::activation}, {args.gate_up, args.dy}, {args.dgate_up, args.y},
      12.0 * static_cast<double>(args.dy.elements()), args, HAWSER_BACKENDS(gated_backward));
}

}  // namespace hawser::ops
