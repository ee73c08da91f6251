#include "ops/adamw_8bit/adamw_8bit.h"

#include "ops/update/expect_weights.h"

namespace hawser::ops {

void adamw_8bit(Stream& stream, const AdamW8bit& args) {
  constexpr auto kOp = "adamw_8bit";
  expect_update(kOp, args);
  const Shape shape = args.weight.shape(), blocks{ceil_div(shape[0], kStateBlock)};
  expect(kOp, "exp_avg", args.exp_avg, {DType::u8}, shape);
  expect(kOp, "exp_avg_absmax", args.exp_avg_absmax, {DType::f32}, blocks);
  expect(kOp, "exp_avg_sq", args.exp_avg_sq, {DType::u8}, shape);
  expect(kOp, "exp_avg_sq_absmax", args.exp_avg_sq_absmax, {DType::f32}, blocks);
  const StochasticRounding& rounding = args.rounding;
  const TensorView big[] = {args.weight,     args.gradient,          args.exp_avg,       args.exp_avg_absmax,
                            args.exp_avg_sq, args.exp_avg_sq_absmax, args.compute_weight};
  for (int i = 0; i < 7; ++i) {
    for (int j = 0; j < i; ++j) expect_apart(kOp, big[i], big[j]);
    for (const TensorView& view : {args.hyper, args.coefficient, args.skip, rounding.step}) {
      expect_apart(kOp, big[i], view);
    }
  }
  HAWSER_CHECK(args.beta1 >= 0 && args.beta1 < 1 && args.beta2 >= 0 && args.beta2 < 1 && args.epsilon > 0, kOp,
               ": beta1 ", args.beta1, ", beta2 ", args.beta2, ", epsilon ", args.epsilon);
  run(stream, {kOp, OpKind::optimizer},
      {args.weight, args.gradient, args.exp_avg, args.exp_avg_absmax, args.exp_avg_sq, args.exp_avg_sq_absmax,
       args.hyper, args.coefficient, args.skip, rounding.step},
      {args.weight, args.exp_avg, args.exp_avg_absmax, args.exp_avg_sq, args.exp_avg_sq_absmax, args.compute_weight},
      60.0 * static_cast<double>(shape.elements()), args, HAWSER_BACKENDS(adamw_8bit));
}

}  // namespace hawser::ops
