#include "ops/quantize/matrices.h"

namespace hawser::ops {

void expect_matrices(const char* op, const std::vector<EqualMatrices>& matrices, std::int64_t values) {
  const EqualMatrices* before = nullptr;
  for (const EqualMatrices& run : matrices) {
    HAWSER_CHECK(run.size > 0 && run.count > 0, op, ": ", run.count, " matrices of ", run.size, " elements");
    HAWSER_CHECK(run.first >= 0 && run.first + run.count <= values, op, ": matrices [", run.first, ", ",
                 run.first + run.count, ") of ", values);
    HAWSER_CHECK(before == nullptr || before->end() <= run.begin, op, ": matrices from element ", run.begin,
                 " on overlap those before");
    before = &run;
  }
}

std::vector<EqualMatrices> matrices_from(std::vector<EqualMatrices> matrices, std::int64_t at) {
  for (EqualMatrices& run : matrices) run.begin -= at;
  return matrices;
}

void amax_of_matrices(Stream& stream, const AmaxOfMatrices& args) {
  constexpr auto kOp = "amax_of_matrices";
  const std::int64_t count = args.x.elements();
  expect(kOp, "x", args.x, {DType::f32, DType::bf16}, {count});
  expect(kOp, "amax", args.amax, {DType::f32}, {args.amax.elements()});
  expect_matrices(kOp, args.matrices, args.amax.elements());
  expect_apart(kOp, args.amax, args.x);
  run(stream, {kOp, OpKind::elementwise}, {args.x}, {args.amax}, static_cast<double>(count), args,
      HAWSER_BACKENDS(amax_of_matrices));
}

void quantize_matrices(Stream& stream, const QuantizeMatrices& args) {
  constexpr auto kOp = "quantize_matrices";
  const std::int64_t count = args.x.elements();
  expect(kOp, "x", args.x, {DType::f32, DType::bf16}, {count});
  expect(kOp, "scales", args.scales, {DType::f32}, {args.scales.elements()});
  expect(kOp, "q", args.q, {DType::f8e4m3, DType::f8e5m2}, {count});
  expect_matrices(kOp, args.matrices, args.scales.elements());
  for (const TensorView& view : {args.x, args.scales}) expect_apart(kOp, args.q, view);
  run(stream, {kOp, OpKind::elementwise}, {args.x, args.scales}, {args.q}, 2.0 * static_cast<double>(count), args,
      HAWSER_BACKENDS(quantize_matrices));
}

}  // namespace hawser::ops
