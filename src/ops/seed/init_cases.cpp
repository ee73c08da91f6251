#include "ops/seed/init.h"

#include "base/philox.h"
#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace init_cases {

using namespace testing;

TEST(RandomNormal, EachShardGeneratesItsPart) {
  const std::uint64_t name = fnv1a("model.layers.0.mlp.up_proj.weight");
  const RandomStream random(7, name);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t first : {std::int64_t{0}, std::int64_t{999}, std::int64_t{1} << 33}) {
      Values expected;
      for (std::int64_t i = 0; i < 3000; ++i) {
        expected.push_back(rounded(0.5 + 0.02 * random.normal(static_cast<std::uint64_t>(first + i)), dtype));
      }
      check_case({cat("random_normal ", first),
                  [&](World& world) -> std::vector<Values> {
                    const TensorView y = world.out(dtype, {3, 1000});
                    random_normal(world.stream(),
                                  {.y = y, .seed = 7, .name = name, .first_element = first, .mean = 0.5, .std = 0.02});
                    return {world.values(y)};
                  },
                  {expected},
                  1e-7});
    }
  }
}

// Columns 40 to 47 of rows 3 to 12 of a tensor with 100 columns.
TEST(RandomNormal, ColumnsOfATensorHaveItsElements) {
  const RandomStream random(7, fnv1a("w"));
  Values expected;
  for (std::uint64_t row = 3; row < 13; ++row) {
    for (std::uint64_t column = 40; column < 48; ++column) expected.push_back(random.normal(row * 100 + column));
  }
  check_case({"random_normal of columns",
              [&](World& world) -> std::vector<Values> {
                const TensorView y = world.out(DType::f32, {10, 8});
                random_normal(world.stream(),
                              {.y = y, .seed = 7, .name = fnv1a("w"), .first_element = 340, .row_stride = 100});
                return {world.values(y)};
              },
              {expected},
              1e-7});
}

TEST(RandomNormal, RejectsBadArguments) {
  World world(DeviceKind::cpu, 1);
  const TensorView y = world.out(DType::f32, {4});
  expect_rejected([&] { random_normal(world.stream(), {.y = y, .first_element = -1}); }, "first_element -1");
  expect_rejected([&] { random_normal(world.stream(), {.y = y, .std = -1}); }, "std -1");
  expect_rejected([&] { random_normal(world.stream(), {.y = y, .row_stride = 4}); }, "row_stride 4");
  expect_rejected([&] { random_normal(world.stream(), {.y = world.out(DType::i32, {4})}); }, "y is int32");
}

}  // namespace init_cases
}  // namespace hawser::ops
