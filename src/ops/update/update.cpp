#include "ops/update/update.h"

#include "ops/adamw/adamw.h"

namespace hawser::ops {

void update(Stream& stream, const Update& args) {
  constexpr auto kOp = "update";
  HAWSER_CHECK(args.weight.rank() == 1, kOp, ": weight must be a vector");
  const Shape shape = args.weight.shape();
  expect(kOp, "weight", args.weight, {DType::f32, DType::bf16}, shape);
  expect(kOp, "gradient", args.gradient, {DType::f32}, shape);
  const bool stateless = args.rule == UpdateRule::sgd && args.momentum == 0;
  if (!stateless) expect(kOp, "first", args.first, {DType::f32, DType::bf16}, shape);
  if (args.rule == UpdateRule::adamw) expect(kOp, "second", args.second, {args.first.dtype()}, shape);
  HAWSER_CHECK(!stateless || args.first.empty(), kOp, ": a state of sgd without momentum");
  HAWSER_CHECK(args.rule == UpdateRule::adamw || args.second.empty(), kOp,
               ": a second state of another rule than adamw");
  expect(kOp, "hyper", args.hyper, {DType::f32}, {kAdamHyperFields});
  if (!args.compute_weight.empty()) {
    expect(kOp, "compute_weight", args.compute_weight, {DType::f32, DType::bf16}, shape);
  }
  if (!args.coefficient.empty()) expect(kOp, "coefficient", args.coefficient, {DType::f32}, {1});
  if (!args.skip.empty()) expect(kOp, "skip", args.skip, {DType::i32}, {1});
  const StochasticRounding& rounding = args.rounding;
  if (!rounding.step.empty()) expect(kOp, "step", rounding.step, {DType::i32}, {1});
  HAWSER_CHECK(rounding.first >= 0 && rounding.part >= 1 && rounding.whole >= rounding.part && rounding.begin >= 0, kOp,
               ": elements from ", rounding.first, ", ", rounding.part, " of ", rounding.whole);
  const TensorView big[] = {args.weight, args.gradient, args.first, args.second, args.compute_weight};
  for (int i = 0; i < 5; ++i) {
    for (int j = 0; j < i; ++j) expect_apart(kOp, big[i], big[j]);
    for (const TensorView& view : {args.hyper, args.coefficient, args.skip, rounding.step}) {
      expect_apart(kOp, big[i], view);
    }
  }
  HAWSER_CHECK(args.beta1 >= 0 && args.beta1 < 1 && args.beta2 >= 0 && args.beta2 < 1 && args.epsilon > 0 &&
                   args.momentum >= 0 && args.momentum < 1,
               kOp, ": beta1 ", args.beta1, ", beta2 ", args.beta2, ", epsilon ", args.epsilon, ", momentum ",
               args.momentum);
  run(stream, {kOp, OpKind::optimizer},
      {args.weight, args.gradient, args.first, args.second, args.hyper, args.coefficient, args.skip, rounding.step},
      {args.weight, args.first, args.second, args.compute_weight}, 16.0 * static_cast<double>(shape.elements()), args,
      HAWSER_BACKENDS(update));
}

}  // namespace hawser::ops
