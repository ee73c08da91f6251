#include "ops/quantize/quantize_blocks.h"

namespace hawser::ops {

void quantize_blocks(Stream& stream, const QuantizeBlocks& args) {
  constexpr auto kOp = "quantize_blocks";
  expect_matrix(kOp, "x", args.x);
  expect(kOp, "x", args.x, {DType::f32, DType::bf16}, args.x.shape(), Rows::padded);
  const std::int64_t rows = args.x.size(0), columns = args.x.size(1);
  HAWSER_CHECK(args.kind != ScaleKind::one, kOp, ": one scale for all blocks");
  HAWSER_CHECK(!args.q.empty() || !args.transposed.empty(), kOp, ": nothing to write");
  const auto check = [&](const char* name, const TensorView& q, const char* scales_name, const TensorView& scales,
                         const Shape& shape) {
    HAWSER_CHECK(q.empty() == scales.empty(), kOp, ": ", name, " without ", scales_name, ", or the reverse");
    if (q.empty()) return;
    expect(kOp, name, q, {DType::f8e4m3, DType::f8e5m2}, shape);
    expect(kOp, scales_name, scales, {DType::f32}, scale_shape(args.kind, shape[0], shape[1]));
  };
  check("q", args.q, "scales", args.scales, {rows, columns});
  check("transposed", args.transposed, "transposed_scales", args.transposed_scales, {columns, rows});
  HAWSER_CHECK(args.q.empty() || args.transposed.empty() || args.q.dtype() == args.transposed.dtype(), kOp,
               ": q and transposed have two dtypes");
  if (!args.mask.empty()) expect(kOp, "mask", args.mask, {DType::i32}, {rows});
  const std::initializer_list<TensorView> written = {args.q, args.scales, args.transposed, args.transposed_scales};
  for (const TensorView& to : written) {
    expect_apart(kOp, to, args.x);
    expect_apart(kOp, to, args.mask);
  }
  run(stream, {kOp, OpKind::elementwise}, {args.x, args.mask}, written, 3.0 * static_cast<double>(args.x.elements()),
      args, HAWSER_BACKENDS(quantize_blocks));
}

}  // namespace hawser::ops
