#include "ops/quantize/parts.h"

namespace hawser::ops {

void expect_parts(const char* op, const std::vector<EqualParts>& parts, std::int64_t values) {
  const EqualParts* before = nullptr;
  for (const EqualParts& run : parts) {
    HAWSER_CHECK(run.size > 0 && run.count > 0, op, ": ", run.count, " parts of ", run.size, " elements");
    HAWSER_CHECK(run.first >= 0 && run.first + run.count <= values, op, ": parts [", run.first, ", ",
                 run.first + run.count, ") of ", values);
    HAWSER_CHECK(before == nullptr || before->end() <= run.begin, op, ": parts from element ", run.begin,
                 " on overlap those before");
    before = &run;
  }
}

std::vector<EqualParts> parts_from(std::vector<EqualParts> parts, std::int64_t at) {
  for (EqualParts& run : parts) run.begin -= at;
  return parts;
}

void amax_of_parts(Stream& stream, const AmaxOfParts& args) {
  constexpr auto kOp = "amax_of_parts";
  const std::int64_t count = args.x.elements();
  expect(kOp, "x", args.x, {DType::f32, DType::bf16}, {count});
  expect(kOp, "amax", args.amax, {DType::f32}, {args.amax.elements()});
  expect_parts(kOp, args.parts, args.amax.elements());
  expect_apart(kOp, args.amax, args.x);
  run(stream, {kOp, OpKind::elementwise}, {args.x}, {args.amax}, static_cast<double>(count), args,
      HAWSER_BACKENDS(amax_of_parts));
}

void quantize_parts(Stream& stream, const QuantizeParts& args) {
  constexpr auto kOp = "quantize_parts";
  const std::int64_t count = args.x.elements();
  expect(kOp, "x", args.x, {DType::f32, DType::bf16}, {count});
  expect(kOp, "scales", args.scales, {DType::f32}, {args.scales.elements()});
  expect(kOp, "q", args.q, {DType::f8e4m3, DType::f8e5m2}, {count});
  expect_parts(kOp, args.parts, args.scales.elements());
  for (const TensorView& view : {args.x, args.scales}) expect_apart(kOp, args.q, view);
  run(stream, {kOp, OpKind::elementwise}, {args.x, args.scales}, {args.q}, 2.0 * static_cast<double>(count), args,
      HAWSER_BACKENDS(quantize_parts));
}

}  // namespace hawser::ops
