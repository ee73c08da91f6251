#include "ops/bias/add_bias.h"

#include "ops/run_op.h"
#include "tensor/dtype_dispatch.h"

namespace hawser::ops {

namespace cpu {
namespace {

template <class Y, class B>
void kernel(const AddBias& a) {
  const std::int64_t rows = a.y.size(0), columns = a.y.size(1);
  const B* bias = a.bias.data<B>();
#pragma omp parallel for schedule(static)
  for (std::int64_t t = 0; t < rows; ++t) {
    Y* y = a.y.data<Y>() + t * a.y.stride(0);
    for (std::int64_t c = 0; c < columns; ++c) y[c] = Y(static_cast<float>(y[c]) + static_cast<float>(bias[c]));
  }
}

}  // namespace

void add_bias(const AddBias& args) {
  dispatch_float(args.y.dtype(), [&](auto y) {
    dispatch_float(args.bias.dtype(), [&](auto bias) { kernel<decltype(y), decltype(bias)>(args); });
  });
}

}  // namespace cpu

void add_bias(Stream& stream, const AddBias& args) {
  expect("add_bias", "y", args.y, {DType::f32, DType::bf16}, args.y.shape(), Rows::padded);
  HAWSER_CHECK(args.y.rank() == 2, "add_bias: y is ", args.y.text());
  expect("add_bias", "bias", args.bias, {DType::f32, DType::bf16}, {args.y.size(1)});
  run(stream, {"add_bias", OpKind::elementwise}, {args.y, args.bias}, {args.y}, static_cast<double>(args.y.elements()),
      args, HAWSER_BACKENDS(add_bias));
}

}  // namespace hawser::ops
