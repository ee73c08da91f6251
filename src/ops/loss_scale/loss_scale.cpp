#include "ops/loss_scale/loss_scale.h"

namespace hawser::ops {

void scale_loss(Stream& stream, const ScaleLoss& args) {
  constexpr auto kOp = "scale_loss";
  expect(kOp, "factor", args.factor, {DType::f32}, {1});
  expect(kOp, "loss_scale", args.loss_scale, {DType::f32}, {1});
  expect(kOp, "out", args.out, {DType::f32}, {1});
  run(stream, {kOp, OpKind::optimizer}, {args.factor, args.loss_scale}, {args.out}, 1, args,
      HAWSER_BACKENDS(scale_loss));
}

void refuse_step(Stream& stream, const RefuseStep& args) {
  constexpr auto kOp = "refuse_step";
  expect(kOp, "refusal", args.refusal, {DType::f32}, {1});
  expect(kOp, "skip", args.skip, {DType::i32}, {1});
  HAWSER_CHECK(args.value != 0 && args.waits != 0, kOp, ": 0 is no skip");
  HAWSER_CHECK(args.step.empty() == args.replay_step.empty(), kOp, ": a step without replay_step, or the other");
  if (args.replay_step.empty()) {
    run(stream, {kOp, OpKind::optimizer}, {args.refusal, args.skip}, {args.skip}, 1, args,
        HAWSER_BACKENDS(refuse_step));
    return;
  }
  expect(kOp, "step", args.step, {DType::i32}, {1});
  expect(kOp, "replay_step", args.replay_step, {DType::i32}, {1});
  run(stream, {kOp, OpKind::optimizer}, {args.refusal, args.skip, args.step, args.replay_step},
      {args.skip, args.replay_step}, 1, args, HAWSER_BACKENDS(refuse_step));
}

void count_step(Stream& stream, const CountStep& args) {
  constexpr auto kOp = "count_step";
  expect(kOp, "step", args.step, {DType::i32}, {1});
  expect(kOp, "good_steps", args.good_steps, {DType::i32}, {1});
  expect(kOp, "loss_scale", args.loss_scale, {DType::f32}, {1});
  expect(kOp, "skip", args.skip, {DType::i32}, {1});
  HAWSER_CHECK(args.overflow != 0, kOp, ": 0 is no skip");
  const LossScaling& scaling = args.scaling;
  HAWSER_CHECK(scaling.growth_factor >= 1 && scaling.backoff_factor > 0 && scaling.backoff_factor <= 1 &&
                   scaling.growth_interval >= 0 && scaling.minimum >= 0,
               kOp, ": growth ", scaling.growth_factor, " every ", scaling.growth_interval, ", backoff ",
               scaling.backoff_factor, ", minimum ", scaling.minimum);
  run(stream, {kOp, OpKind::optimizer}, {args.step, args.good_steps, args.loss_scale, args.skip},
      {args.step, args.good_steps, args.loss_scale}, 1, args, HAWSER_BACKENDS(count_step));
}

}  // namespace hawser::ops
