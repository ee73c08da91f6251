#include "ops/loss_scale/loss_scale.h"

#include <array>

#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace loss_scale_cases {

using namespace testing;

TEST(LossScale, MultipliesTheFactorOfTheLoss) {
  check_case({"scale_loss",
              [](World& world) -> std::vector<Values> {
                const ScaleLoss args{.factor = world.in(DType::f32, {1}, {0.125}),
                                     .loss_scale = world.in(DType::f32, {1}, {65536}),
                                     .out = world.out(DType::f32, {1})};
                scale_loss(world.stream(), args);
                return {world.values(args.out)};
              },
              {{8192}},
              0});
}

TEST(LossScale, FollowsTorchsGradScaler) {
  struct Row {
    const char* name;
    double step, good, scale, skip;              // before; skip 2: an overflow
    double step_after, good_after, scale_after;  // after
    std::int64_t interval = 3;
  };
  for (const Row& row :
       {Row{"a good step", 7, 0, 1024, 0, 8, 1, 1024}, Row{"the scale grows", 7, 2, 1024, 0, 8, 0, 2048},
        Row{"an overflow", 7, 2, 1024, 2, 7, 0, 512}, Row{"no target", 7, 2, 1024, 1, 7, 2, 1024},
        Row{"runs again", 7, 2, 1024, 5, 7, 2, 1024}, Row{"an overflow near the minimum", 7, 2, 12, 2, 7, 0, 8},
        Row{"an overflow at the minimum", 7, 2, 8, 2, 7, 0, 8}, Row{"a static scale", 7, 2, 1024, 0, 8, 3, 1024, 0},
        Row{"an overflow of a static scale", 7, 2, 1024, 2, 7, 0, 1024, 0}}) {
    check_case({row.name,
                [&](World& world) -> std::vector<Values> {
                  const CountStep args{.step = world.in_out(DType::i32, {1}, {row.step}),
                                       .good_steps = world.in_out(DType::i32, {1}, {row.good}),
                                       .loss_scale = world.in_out(DType::f32, {1}, {row.scale}),
                                       .skip = world.in(DType::i32, {1}, {row.skip}),
                                       .overflow = 2,
                                       .scaling = {.growth_interval = row.interval, .minimum = 8}};
                  count_step(world.stream(), args);
                  return {world.values(args.step), world.values(args.good_steps), world.values(args.loss_scale)};
                },
                {{row.step_after}, {row.good_after}, {row.scale_after}},
                0});
  }
}

TEST(LossScale, ARefusedStepIsSkipped) {
  for (const auto& [refusal, before, after] :
       {std::array{0.0, 0.0, 0.0}, {0.0, 2.0, 2.0}, {1.0, 0.0, 5.0}, {2.0, 1.0, 5.0}}) {
    check_case({cat("refuse_step ", refusal, " ", before),
                [&](World& world) -> std::vector<Values> {
                  const RefuseStep args{.refusal = world.in(DType::f32, {1}, {refusal}),
                                        .skip = world.in_out(DType::i32, {1}, {before}),
                                        .value = 5};
                  refuse_step(world.stream(), args);
                  return {world.values(args.skip)};
                },
                {{after}},
                0});
  }
}

// Before: the skip and replay_step, in step 7.
TEST(LossScale, ARefusedStepRunsAgainBeforeLaterOnes) {
  struct Row {
    const char* name;
    double refusal, skip, replay_step, skip_after, replay_after;
  };
  for (const Row& row : {Row{"refuse_step counts", 0, 0, -1, 0, -1}, Row{"refuse_step refuses", 1, 0, -1, 5, 7},
                         Row{"refuse_step waits", 0, 0, 6, 4, 6}, Row{"refuse_step refused, waits", 1, 0, 6, 4, 6},
                         Row{"refuse_step again", 0, 0, 7, 0, 7}, Row{"refuse_step refused again", 1, 2, 7, 5, 7}}) {
    check_case({row.name,
                [&](World& world) -> std::vector<Values> {
                  const RefuseStep args{.refusal = world.in(DType::f32, {1}, {row.refusal}),
                                        .skip = world.in_out(DType::i32, {1}, {row.skip}),
                                        .value = 5,
                                        .step = world.in(DType::i32, {1}, {7}),
                                        .replay_step = world.in_out(DType::i32, {1}, {row.replay_step}),
                                        .waits = 4};
                  refuse_step(world.stream(), args);
                  return {world.values(args.skip), world.values(args.replay_step)};
                },
                {{row.skip_after}, {row.replay_after}},
                0});
  }
}

TEST(LossScale, RejectsBadArguments) {
  World world(DeviceKind::cpu, 1);
  const TensorView f = world.in(DType::f32, {1}, {1}), i = world.in(DType::i32, {1}, {1});
  Stream& s = world.stream();
  expect_rejected([&] { scale_loss(s, {.factor = i, .loss_scale = f, .out = f}); }, "factor is int32");
  expect_rejected([&] { count_step(s, {.step = f, .good_steps = i, .loss_scale = f, .skip = i}); }, "step is float32");
  expect_rejected(
      [&] {
        count_step(s, {.step = i, .good_steps = i, .loss_scale = f, .skip = i, .scaling = {.backoff_factor = 0}});
      },
      "backoff 0");
}

}  // namespace loss_scale_cases
}  // namespace hawser::ops
