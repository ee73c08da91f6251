#include "ops/copy/scale.h"

namespace hawser::ops {

void scale(Stream& stream, const Scale& args) {
  expect("scale", "x", args.x, {DType::f32, DType::bf16}, args.x.shape());
  HAWSER_CHECK(args.x.dense(), "scale: x has gaps: ", args.x.text());
  run(stream, {"scale", OpKind::copy}, {args.x}, {args.x}, static_cast<double>(args.x.elements()), args,
      HAWSER_BACKENDS(scale));
}

}  // namespace hawser::ops
