#include "ops/seed/init.h"

namespace hawser::ops {

void random_normal(Stream& stream, const RandomNormal& args) {
  expect("random_normal", "y", args.y, {DType::f32, DType::bf16}, args.y.shape());
  HAWSER_CHECK(args.first_element >= 0 && args.std >= 0, "random_normal: first_element ", args.first_element, ", std ",
               args.std);
  HAWSER_CHECK(args.row_stride == 0 || (args.y.rank() == 2 && args.row_stride >= args.y.size(1)),
               "random_normal: row_stride ", args.row_stride, " of y ", args.y.text());
  run(stream, {"random_normal", OpKind::random}, {}, {args.y}, 100.0 * static_cast<double>(args.y.elements()), args,
      HAWSER_BACKENDS(random_normal));
}

}  // namespace hawser::ops
