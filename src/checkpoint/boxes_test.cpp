#include "checkpoint/boxes.h"

#include <gtest/gtest.h>

#include <numeric>

namespace hawser::checkpoint {
namespace boxes_test {

TEST(Boxes, IntersectAndContain) {
  const Region a{{0, 2}, {4, 4}}, b{{3, 0}, {5, 3}};
  EXPECT_EQ(intersect(a, b), (Region{{3, 2}, {1, 1}}));
  EXPECT_EQ(a.text(), "[0:4, 2:6]");
  EXPECT_FALSE(intersect(a, {{4, 2}, {1, 1}}).has_value());
  EXPECT_TRUE(intersect(full({}), full({})).has_value());
  EXPECT_TRUE(is_inside(a, {4, 6}));
  EXPECT_FALSE(is_inside(a, {4, 5}));
  EXPECT_FALSE(is_inside({{INT64_MAX}, {INT64_MAX}}, {4}));
  EXPECT_FALSE(is_inside({{1}, {1}}, {4, 4}));
}

TEST(Boxes, RunsCoverABoxInOrder) {
  const Shape shape{3, 4, 5};
  for (const Region& region : {full(shape), Region{{1, 0, 0}, {2, 4, 5}}, Region{{0, 1, 0}, {3, 2, 5}},
                               Region{{1, 1, 1}, {2, 3, 4}}, Region{{2, 3, 4}, {1, 1, 1}}}) {
    std::vector<std::int64_t> seen, expected;
    int runs = 0;
    for_each_run(shape, region, [&](std::int64_t begin, std::int64_t count) {
      ++runs;
      for (std::int64_t i = 0; i < count; ++i) seen.push_back(begin + i);
    });
    for (std::int64_t i = 0; i < region.extent[0]; ++i) {
      for (std::int64_t j = 0; j < region.extent[1]; ++j) {
        for (std::int64_t k = 0; k < region.extent[2]; ++k) {
          expected.push_back(flat_index(shape, {region.offset[0] + i, region.offset[1] + j, region.offset[2] + k}));
        }
      }
    }
    EXPECT_EQ(seen, expected) << region.text();
    const bool rows = region.extent[2] == 5, planes = rows && region.extent[1] == 4;
    EXPECT_EQ(runs, planes ? 1 : rows ? region.extent[0] : region.extent[0] * region.extent[1]);
  }
}

TEST(Boxes, CopyBetweenBoxesAndTypes) {
  std::vector<float> from(24);
  std::iota(from.begin(), from.end(), 0.0f);
  std::vector<Bf16> to(6, Bf16(-1.0f));
  const Region source{{0, 0, 0}, {2, 3, 4}}, target{{1, 1, 1}, {1, 2, 3}};
  copy_region({{1, 1, 2}, {1, 2, 2}}, {source, reinterpret_cast<std::byte*>(from.data()), 4},
              {target, reinterpret_cast<std::byte*>(to.data()), 2}, cast_run(DType::f32, DType::bf16));
  const std::vector<float> expected{-1, 18, 19, -1, 22, 23};
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(static_cast<float>(to[i]), expected[i]);
  EXPECT_EQ(cast_run(DType::i32, DType::f32), nullptr);
}

}  // namespace boxes_test
}  // namespace hawser::checkpoint
