// How many values parameters have, and which are a segment's (nn/granularity.h).
#include <gtest/gtest.h>

#include "nn/granularity.h"

namespace hawser::nn {
namespace segment_values_test {

using Kind = Granularity::Kind;

TEST(Granularity, OfExpertsHasOneValueForEachMatrix) {
  const Param experts = sliced_param("experts", {2 * 3, 5}, 0, {}, {}, true);
  Param param = experts;
  param.segments = {
      {.name = "experts", .row = 0, .rows = 6, .global = {4, 3, 5}, .slice = Slice{.dim = 0, .begin = 2, .size = 2}}};
  const Flat flat("f", {}, {param});
  const SegmentValues rows = segment_values(flat, {.kind = Kind::row}).front();
  EXPECT_EQ(rows.shape, (Shape{2, 3}));
  EXPECT_EQ(rows.global, (Shape{4, 3}));
  EXPECT_EQ(rows.offset, (Shape{2, 0}));
  EXPECT_EQ(segment_values(flat, {.kind = Kind::column}).front().shape, (Shape{2, 5}));
  EXPECT_EQ(segment_values(flat, {.kind = Kind::matrix}).front().shape, (Shape{2}));
  EXPECT_EQ(sum_count(flat, {.kind = Kind::matrix}), 4);
}

// The last rank of a vocabulary has a row of padding: as many values as the others.
TEST(Granularity, OfPaddingIsAsManyOnEveryRank) {
  for (const int part : {0, 1}) {
    const DimSlice rows{.begin = part * 4, .total = 7};
    const Flat flat("f", {},
                    {sliced_param("head", {4, 5}, 0, rows, {}, true), sliced_param("bias", {4}, 0, rows, {}, false)});
    EXPECT_EQ(flat.params()[1].padding, part);
    EXPECT_EQ(value_count(flat, {.kind = Kind::row}, 128), 4 + 1) << part;
    EXPECT_EQ(value_count(flat, {.kind = Kind::column}, 128), 5 + 4) << part;
    EXPECT_EQ(value_count(flat, {.kind = Kind::matrix}, 128), 2) << part;
    EXPECT_EQ(segment_values(flat, {.kind = Kind::row})[1].first, 4) << part;
  }
}

TEST(Granularity, OfBlocksRejectsWhatCutsOne) {
  const Granularity blocks{.kind = Kind::block, .block = 8};
  const auto error_of = [&](const Param& param) -> std::string {
    try {
      value_count(Flat("f", {}, {param}), blocks, 128);
    } catch (const InternalError& error) {
      return error.what();
    }
    return "";
  };
  const auto expect = [&](const Param& param, const std::string& text) {
    EXPECT_NE(error_of(param).find(text), std::string::npos) << error_of(param);
  };
  // On every rank alike.
  for (int part = 0; part < 2; ++part) {
    expect(sliced_param("down", {3, 12}, 1, {.begin = part * 12, .total = 24}, {}, true),
           cat("down: the slice [", part * 12, ", ", part * 12 + 12, ") of dim 1 of [3, 24] cuts a block of 8"));
    expect(sliced_param("down", {3, 8}, 1, {.begin = part * 8, .total = 20}, {}, true), "of [3, 20] cuts a block of 8");
    expect(sliced_param("up", {3, 5}, 0, {.begin = part * 3, .total = 6}, {}, true), "of dim 0 of [6, 5] cuts a block");
  }
  expect(fused_param("qk", {row_segment("q", 0, 3, {3, 5}, {}), row_segment("k", 3, 8, {8, 5}, {})}, {11, 5}, {}, true),
         "k: begins at element 15 of qk, inside of a block of 8");
  EXPECT_EQ(error_of(full_param("norm", {13}, {}, false)), "");
}

}  // namespace segment_values_test
}  // namespace hawser::nn
