#include "ops/activation/gated.h"

namespace hawser::ops {

void gated_forward(Stream& stream, const GatedForward& args) {
  const char* const kOp = args.kind == Gate::silu ? "swiglu_forward" : "geglu_forward";
  const Fp8Output& fp8 = args.fp8;
  if (fp8.empty()) {
    HAWSER_CHECK(args.y.rank() == 2, kOp, ": y must be a matrix");
    expect(kOp, "y", args.y, {DType::f32, DType::bf16}, args.y.shape(), Rows::padded);
    expect(kOp, "gate_up", args.gate_up, {args.y.dtype()}, {args.y.size(0), 2 * args.y.size(1)}, Rows::padded);
    expect_apart(kOp, args.y, args.gate_up);
  } else {
    HAWSER_CHECK(args.y.empty(), kOp, ": y, and FP8 in its place");
    expect_matrix(kOp, "gate_up", args.gate_up);
    const std::int64_t rows = args.gate_up.size(0), columns = args.gate_up.size(1) / 2;
    expect(kOp, "gate_up", args.gate_up, {DType::f32, DType::bf16}, {rows, 2 * columns}, Rows::padded);
    expect_fp8_output(kOp, fp8, {DType::f8e4m3}, rows, columns);
    expect_apart(kOp, fp8, args.gate_up);
  }
  run(stream, {kOp, OpKind::activation}, {args.gate_up, fp8.scale, fp8.mask, fp8.row_count, fp8.amax, fp8.saturated},
      {args.y, fp8.q, fp8.transposed, fp8.used, fp8.amax, fp8.saturated},
      2.5 * static_cast<double>(args.gate_up.elements()), args, HAWSER_BACKENDS(gated_forward));
}

void gated_backward(Stream& stream, const GatedBackward& args) {
  const char* const kOp = args.kind == Gate::silu ? "swiglu_backward" : "geglu_backward";
  HAWSER_CHECK(args.dy.rank() == 2, kOp, ": dy must be a matrix");
  const std::int64_t rows = args.dy.size(0), columns = args.dy.size(1);
  const Shape wide{rows, 2 * columns};
  const Fp8Output &of_input = args.dgate_up_fp8, &of_output = args.y_fp8;
  expect(kOp, "dy", args.dy, {DType::f32, DType::bf16}, args.dy.shape(), Rows::padded);
  expect(kOp, "gate_up", args.gate_up, {args.dy.dtype()}, wide, Rows::padded);
  if (of_input.empty()) {
    HAWSER_CHECK(of_output.empty(), kOp, ": y in FP8 without dgate_up in FP8");
    expect(kOp, "dgate_up", args.dgate_up, {args.dy.dtype()}, wide, Rows::padded);
    expect_apart_or_same(kOp, args.dgate_up, args.gate_up);
    expect_apart(kOp, args.dgate_up, args.dy);
  } else {
    HAWSER_CHECK(args.dgate_up.empty() && args.y.empty(), kOp, ": dgate_up or y, and FP8 in its place");
    expect_fp8_output(kOp, of_input, {DType::f8e5m2}, rows, 2 * columns);
    if (!of_output.empty()) expect_fp8_output(kOp, of_output, {DType::f8e4m3}, rows, columns);
    for (const Fp8Output& to : {of_input, of_output}) {
      for (const TensorView& view : {args.gate_up, args.dy}) expect_apart(kOp, to, view);
    }
    HAWSER_CHECK(of_output.empty() || of_output.row_count.raw() == of_input.row_count.raw(), kOp,
                 ": two counts of rows");
    for (const TensorView& view : {of_output.q, of_output.transposed, of_output.used})
      expect_apart(kOp, of_input, view);
  }
  if (!args.y.empty()) {
    expect(kOp, "y", args.y, {args.dy.dtype()}, args.dy.shape(), Rows::padded);
    expect_apart_or_same(kOp, args.y, args.dy);
    expect_apart(kOp, args.y, args.gate_up);
    expect_apart(kOp, args.y, args.dgate_up);
  }
  run(stream, {kOp, OpKind::activation},
      {args.gate_up, args.dy, of_input.scale, of_input.mask, of_input.amax, of_input.saturated, of_output.scale,
       of_output.mask, of_output.amax, of_output.saturated, of_input.row_count},
      {args.dgate_up, args.y, of_input.q, of_input.transposed, of_input.used, of_input.amax, of_input.saturated,
       of_output.q, of_output.transposed, of_output.used, of_output.amax, of_output.saturated},
      12.0 * static_cast<double>(args.dy.elements()), args, HAWSER_BACKENDS(gated_backward));
}

}  // namespace hawser::ops
