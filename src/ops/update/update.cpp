#include "ops/update/update.h"

#include "ops/update/expect_weights.h"

namespace hawser::ops {

void update(Stream& stream, const Update& args) {
  constexpr auto kOp = "update";
  expect_update(kOp, args);
  const Shape shape = args.weight.shape();
  const bool stateless = args.rule == UpdateRule::sgd && args.momentum == 0;
  if (!stateless) expect(kOp, "first", args.first, {DType::f32, DType::bf16}, shape);
  if (args.rule == UpdateRule::adamw) expect(kOp, "second", args.second, {args.first.dtype()}, shape);
  HAWSER_CHECK(!stateless || args.first.empty(), kOp, ": a state of sgd without momentum");
  HAWSER_CHECK(args.rule == UpdateRule::adamw || args.second.empty(), kOp,
               ": a second state of another rule than adamw");
  const StochasticRounding& rounding = args.rounding;
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
