#include "ops/copy/sum_parts.h"

namespace hawser::ops {

void sum_parts(Stream& stream, const SumParts& args) {
  constexpr const char* kOp = "sum_parts";
  expect(kOp, "y", args.y, {DType::f32, DType::bf16}, args.y.shape());
  HAWSER_CHECK(args.y.rank() == 2 && args.parts.rank() == 2 && args.parts.size(1) == args.y.size(1) &&
                   args.y.size(0) > 0 && args.parts.size(0) % args.y.size(0) == 0,
               "sum_parts: parts ", args.parts.text(), " of y ", args.y.text());
  expect(kOp, "parts", args.parts, {args.y.dtype()}, args.parts.shape());
  expect_apart(kOp, args.parts, args.y);
  if (!args.residual.empty()) {
    expect(kOp, "residual", args.residual, {args.y.dtype()}, args.y.shape());
    expect_apart_or_same(kOp, args.y, args.residual);
  }
  run(stream, {kOp, OpKind::elementwise}, {args.parts, args.residual}, {args.y}, static_cast<double>(args.y.elements()),
      args, HAWSER_BACKENDS(sum_parts));
}

}  // namespace hawser::ops
