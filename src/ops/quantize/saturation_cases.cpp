#include "ops/quantize/saturation.h"

#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace saturation_cases {

using namespace testing;

TEST(Saturation, DecidesWhetherAStepRunsAgain) {
  struct Row {
    const char* name;
    Values saturated;
    double replay_step, replays, skip;               // before, in step 7
    double replay_after, replays_after, skip_after;  // 3: saturates, 4: waits
    double worst = 0, site = 0;
  };
  const Values few = {0, 1, 0, 0}, many = {0, 1, 64, 0}, equal = {0, 8, 8, 0};
  for (const Row& row :
       {Row{"nothing saturated", {0, 0, 0, 0}, -1, 0, 0, -1, 0, 0, 0, 0},
        Row{"below the limit", few, -1, 0, 0, -1, 0, 0, 1.0 / 64, 1},
        Row{"the limit itself", equal, -1, 0, 0, -1, 0, 0, 0.125, 1},
        Row{"beyond the limit", many, -1, 0, 0, 7, 1, 3, 0.5, 2}, Row{"again", many, 7, 1, 0, 7, 2, 3, 0.5, 2},
        Row{"once more than allowed", many, 7, 2, 0, -1, 0, 0, 0.5, 2},
        Row{"run again", few, 7, 2, 0, -1, 0, 0, 1.0 / 64, 1},
        Row{"another step runs again first", many, 6, 1, 0, 6, 1, 4, 0.5, 2},
        Row{"another one, without a target", few, 6, 1, 2, 6, 1, 4, 1.0 / 64, 1},
        Row{"skipped otherwise", many, -1, 0, 1, -1, 0, 1, 0.5, 2},
        Row{"run again, skipped otherwise", many, 7, 1, 1, -1, 0, 1, 0.5, 2},
        Row{"refused", many, 7, 0, 5, 7, 0, 5, 0.5, 2},
        Row{"refused after replays", few, 7, 2, 5, 7, 2, 5, 1.0 / 64, 1}}) {
    check_case({row.name,
                [&](World& world) -> std::vector<Values> {
                  const JudgeSaturation args{.saturated = world.in(DType::f32, {4}, row.saturated),
                                             .elements = world.in(DType::f32, {4}, {0, 64, 128, 64}),
                                             .step = world.in(DType::i32, {1}, {7}),
                                             .worst = world.out(DType::f32, {1}),
                                             .worst_site = world.out(DType::i32, {1}),
                                             .replay_step = world.in_out(DType::i32, {1}, {row.replay_step}),
                                             .replays = world.in_out(DType::i32, {1}, {row.replays}),
                                             .skip = world.in_out(DType::i32, {1}, {row.skip}),
                                             .limit = 0.125f,
                                             .max_replays = 2,
                                             .saturates = 3,
                                             .waits = 4,
                                             .refused = 5};
                  judge_saturation(world.stream(), args);
                  return {world.values(args.worst), world.values(args.worst_site), world.values(args.replay_step),
                          world.values(args.replays), world.values(args.skip)};
                },
                {{row.worst}, {row.site}, {row.replay_after}, {row.replays_after}, {row.skip_after}},
                0});
  }
}

TEST(Saturation, ManySites) {
  Values saturated(1000), elements(1000, 1024);
  saturated[300] = saturated[900] = 512;
  saturated[299] = 511;
  check_case({"judge_saturation of 1000 sites",
              [&](World& world) -> std::vector<Values> {
                JudgeSaturation args{.saturated = world.in(DType::f32, {1000}, saturated),
                                     .elements = world.in(DType::f32, {1000}, elements),
                                     .step = world.in(DType::i32, {1}, {0}),
                                     .worst = world.out(DType::f32, {1}),
                                     .worst_site = world.out(DType::i32, {1}),
                                     .replay_step = world.in_out(DType::i32, {1}, {-1}),
                                     .replays = world.in_out(DType::i32, {1}, {0}),
                                     .skip = world.in_out(DType::i32, {1}, {0})};
                judge_saturation(world.stream(), args);
                return {world.values(args.worst), world.values(args.worst_site), world.values(args.skip)};
              },
              {{0.5}, {300}, {0}},
              0});
}

TEST(Saturation, RejectsBadArguments) {
  World world(DeviceKind::cpu, 1);
  const auto f = [&] { return world.in(DType::f32, {1}, {1}); };
  const auto i = [&] { return world.in(DType::i32, {1}, {1}); };
  JudgeSaturation args{.saturated = f(),
                       .elements = f(),
                       .step = i(),
                       .worst = f(),
                       .worst_site = i(),
                       .replay_step = i(),
                       .replays = i(),
                       .skip = i()};
  args.saturates = 0;
  expect_rejected([&] { judge_saturation(world.stream(), args); }, "codes 0, 1 and -1");
  args.saturates = 1;
  args.elements = i();
  expect_rejected([&] { judge_saturation(world.stream(), args); }, "elements is int32");
}

}  // namespace saturation_cases
}  // namespace hawser::ops
