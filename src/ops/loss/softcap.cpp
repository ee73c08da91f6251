#include "ops/loss/softcap.h"

#include <cmath>

namespace hawser::ops {

void softcap(Stream& stream, const Softcap& args) {
  constexpr auto kOp = "softcap";
  expect_matrix(kOp, "y", args.y);
  expect(kOp, "y", args.y, {DType::f32}, args.y.shape(), Rows::padded);
  HAWSER_CHECK(args.softcap > 0 && std::isfinite(args.softcap), kOp, ": softcap is ", args.softcap);
  run(stream, {kOp, OpKind::elementwise}, {args.y}, {args.y}, static_cast<double>(args.y.elements()), args,
      HAWSER_BACKENDS(softcap));
}

}  // namespace hawser::ops
