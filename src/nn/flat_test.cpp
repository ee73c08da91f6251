#include "nn/flat.h"

#include <gtest/gtest.h>

#include "nn/segment_ranges.h"
#include "tensor/tensor.h"

namespace hawser::nn {
namespace flat_test {

TEST(Flat, AlignsParametersToGrains) {
  const Flat flat(
      "block", {},
      {full_param("a", {3, 50}, {}, true), full_param("b", {128}, {}, false), full_param("c", {5}, {}, false)});
  EXPECT_EQ(flat.offset(0), 0);
  EXPECT_EQ(flat.offset(1), 256);
  EXPECT_EQ(flat.offset(2), 384);
  EXPECT_EQ(flat.used(), 512);
  EXPECT_EQ(flat.total(1), 512);
  EXPECT_EQ(flat.total(3), 768);
  const auto device = make_cpu_device();
  const Storage values(*device, DType::f32, {flat.total(3)});
  EXPECT_EQ(flat.view(values, 1).raw() - values.view().raw(), 256 * 4);
  EXPECT_EQ(flat.view(values, 0).shape(), (Shape{3, 50}));
  // Parameters and gaps cover every element once.
  std::vector<int> covered(768, 0);
  for (const IndexRange& gap : flat.gaps(768)) {
    for (std::int64_t i = gap.begin; i < gap.begin + gap.count; ++i) ++covered[static_cast<std::size_t>(i)];
  }
  for (int p = 0; p < 3; ++p) {
    const std::int64_t count = flat.params()[static_cast<std::size_t>(p)].elements();
    for (std::int64_t i = flat.offset(p); i < flat.offset(p) + count; ++i) ++covered[static_cast<std::size_t>(i)];
  }
  EXPECT_EQ(covered, std::vector<int>(768, 1));
}

TEST(Param, CopiesShareSegmentsUntilOneChanges) {
  Param param = fused_param("qk", {{"q", 0, 6}, {"k", 6, 2}}, {8, 4}, {}, true);
  Param copy = param;
  EXPECT_EQ(&copy.segments[0], &param.segments[0]);
  copy.segments.edit().front().file.transposed = true;
  EXPECT_TRUE(copy.segments[0].file.transposed);
  EXPECT_FALSE(param.segments[0].file.transposed);
  EXPECT_NE(copy.segments, param.segments);
  const Segment* const own = &copy.segments[0];
  copy.segments.edit().front().file.transposed = false;
  EXPECT_EQ(&copy.segments[0], own) << "no other copy has the list";
  EXPECT_EQ(copy.segments, param.segments) << "equal lists, not one list";
  EXPECT_TRUE(Param().segments.empty());
  EXPECT_EQ(Param().segments.begin(), Param().segments.end());
}

TEST(Flat, AShardHoldsWholeGrains) {
  const Flat flat("experts", {.grain = 384}, {full_param("a", {500}, {}, true)});
  EXPECT_EQ(flat.total(1), 768);
  EXPECT_EQ(flat.total(4), 1536);
  EXPECT_THROW(Flat("odd", {.grain = 200}, {}), InternalError);
}

class UnitTest : public ::testing::Test {
 protected:
  std::vector<Param> params() const {
    return {replicated_param("norm", {16}, {}), full_param("up", {8, 16}, {}, true), replicated_param("bias", {16}, {}),
            full_param("down", {16, 8}, {}, true)};
  }
  std::vector<Unit> units_;
  std::vector<Flat> flats_;
};

TEST_F(UnitTest, IsOneFlatInTheOrderOfTheParametersWhereAllAreAlike) {
  const auto places = add_unit("block 0", {.block = 0}, params(), common_domain, units_, flats_);
  ASSERT_EQ(flats_.size(), 1u);
  EXPECT_EQ(flats_[0].name(), "block 0");
  EXPECT_EQ(units_[0].flats, (std::vector<int>{0}));
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(places[static_cast<std::size_t>(i)].flat, 0);
    EXPECT_EQ(places[static_cast<std::size_t>(i)].index, i);
  }
}

TEST_F(UnitTest, HasOneFlatForEachSpec) {
  add_unit("embedding", {.kind = UnitId::Kind::embedding}, {full_param("table", {4, 4}, {}, true)}, common_domain,
           units_, flats_);
  const auto places = add_unit(
      "block 0", {.block = 0}, params(),
      [](const Param& param) {
        FlatSpec spec = param.flat;
        if (param.name == "up") spec.trainable = false, spec.gathered = DType::bf16;
        return spec;
      },
      units_, flats_);
  ASSERT_EQ(flats_.size(), 4u);
  EXPECT_EQ(units_[1].flats, (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(flats_[1].name(), "block 0");
  EXPECT_EQ(flats_[2].name(), "block 0, sliced, frozen, gathered bfloat16");
  EXPECT_EQ(flats_[3].name(), "block 0, sliced");
  EXPECT_EQ(flats_[1].params()[1].name, "bias");
  EXPECT_EQ(places[2].flat, 1);
  EXPECT_EQ(places[2].index, 1);
  EXPECT_EQ(places[3].flat, 3);
  EXPECT_EQ(places[3].index, 0);
}

class SharedTest : public UnitTest {
 protected:
  static Param shared(Param param) {
    param.shared = true;
    return param;
  }
  std::vector<ParamIndex> add(const std::string& name, const std::vector<Param>& params) {
    return add_unit(name, {}, params, rule_, units_, flats_);
  }
  FlatSpecOf rule_ = [](const Param& param) { return param.flat; };
};

// In its unit, and from the flats of an earlier one, whatever the place of the layer that uses it.
TEST_F(SharedTest, IsOneParameterWithAllItsUses) {
  rule_ = [](const Param& param, const UnitId& place) {
    FlatSpec spec = param.flat;
    spec.group = place.block;
    return spec;
  };
  std::vector<Param> own = params();
  own.push_back(shared(own[0]));
  const auto first = add_unit("block 0", {.block = 0}, own, rule_, units_, flats_);
  ASSERT_EQ(flats_.size(), 2u);
  EXPECT_EQ(first[4].flat, first[0].flat);
  EXPECT_EQ(first[4].index, first[0].index);
  const auto second =
      add_unit("block 1", {.block = 1}, {shared(own[3]), full_param("gate", {8, 16}, {}, true)}, rule_, units_, flats_);
  EXPECT_EQ(second[0].flat, first[3].flat);
  EXPECT_EQ(second[0].index, first[3].index);
  EXPECT_EQ(second[1].flat, 2);
  EXPECT_EQ(units_[1].flats, (std::vector<int>{2}));
  std::vector<std::string> names;
  for (const Flat& flat : flats_) {
    for (const Param& param : flat.params()) names.push_back(param.name);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"norm", "bias", "up", "down", "gate"}));
}

TEST_F(SharedTest, WhatIsNoUseOfADeclaredParameterIsRejected) {
  add("block 0", params());
  const std::size_t flats = flats_.size();
  EXPECT_THROW(add("block 1", {shared(replicated_param("other", {16}, {}))}), InternalError) << "not declared";
  EXPECT_THROW(add("block 1", {shared(replicated_param("norm", {17}, {}))}), InternalError) << "another shape";
  EXPECT_THROW(add("block 1", {shared(full_param("norm", {16}, {}, false))}), InternalError) << "another domain";
  const Segment half{.name = "norm", .row = 0, .rows = 8}, rest{.name = "norm.rest", .row = 8, .rows = 8};
  Param fused = fused_param("norm", {half, rest}, {16}, {}, false);
  fused.flat = params()[0].flat;
  EXPECT_THROW(add("block 1", {shared(fused)}), InternalError) << "other segments";
  EXPECT_THROW(add("block 1", {params()[0]}), InternalError) << "declared twice in two units";
  EXPECT_THROW(add("block 1", {full_param("a", {4}, {}, false), full_param("a", {4}, {}, false)}), InternalError)
      << "declared twice in one";
  const Param late = replicated_param("late", {16}, {});
  EXPECT_THROW(add("block 1", {shared(late), late}), InternalError) << "used before it is declared";
  EXPECT_EQ(units_.size(), 1u);
  EXPECT_EQ(flats_.size(), flats);
}

TEST(Param, SegmentsCoverTheirRows) {
  const std::vector<Segment> segments{{"q", 0, 6}, {"k", 6, 2}};
  const Param param = fused_param("qk", segments, {8, 4}, {}, true);
  EXPECT_EQ(segment_shape(param.segments[1]), (Shape{2, 4}));
  EXPECT_THROW(fused_param("qk", segments, {9, 4}, {}, true), InternalError);
  const Param columns = sliced_param("o", {8, 4}, 1, {.begin = 4, .total = 12}, {}, true);
  EXPECT_EQ(columns.segments[0].global, (Shape{8, 12}));
  EXPECT_THROW(sliced_param("o", {8, 4}, 1, {.begin = 9, .total = 12}, {}, true), InternalError);
  Segment row = row_segment("q", 0, 8, {8, 4}, {.begin = 8, .total = 24});
  EXPECT_EQ(row.global, (Shape{24, 4}));
  EXPECT_THROW(fused_param("q", {row}, {8, 5}, {}, true), InternalError) << "another row length";
  EXPECT_TRUE(is_sliced(row));
  EXPECT_EQ(range_name(row), "q");
  EXPECT_EQ(range_shape(row), (Shape{24, 4}));
  row.range = IndexRange{8, 8};
  EXPECT_NO_THROW(fused_param("q", {row}, {8, 4}, {}, true));
  EXPECT_FALSE(is_sliced(row));
  EXPECT_EQ(range_name(row), "q[8:16]");
  EXPECT_EQ(range_shape(row), (Shape{8, 4}));
  EXPECT_EQ(range_slice(row), (Slice{.dim = 0, .begin = 0, .size = 8}));
  for (const IndexRange& other : {IndexRange{9, 15}, {0, 15}, {8, 17}}) {
    row.range = other;
    EXPECT_THROW(fused_param("q", {row}, {8, 4}, {}, true), InternalError) << other.begin;
  }
  EXPECT_THROW(fused_param("qk", {{"q", 0, 6}, {"k", 5, 3}}, {8, 4}, {}, true), InternalError);
}

TEST(Flat, HasAScaleForEachPart) {
  const std::vector<Param> params = {full_param("a", {130, 256}, {}, true), full_param("b", {7, 300}, {}, true)};
  FlatSpec spec;
  EXPECT_EQ(Flat("none", spec, params).scale_count(), 0);
  EXPECT_TRUE(Flat("none", spec, params).scale_view({}, 1).empty());
  spec.scaled = true;
  EXPECT_EQ(Flat("tensor", spec, params).scale_count(), 2);
  std::vector<Param> experts = params;
  experts[0].matrices = 2;
  const Flat flat("parts", spec, experts);
  EXPECT_EQ(flat.scale_count(), 3);
  std::vector<float> scales(3);
  const TensorView all(reinterpret_cast<std::byte*>(scales.data()), DType::f32, {3}, DeviceKind::cpu);
  EXPECT_EQ(flat.scale_view(all, 0).shape(), (Shape{2}));
  EXPECT_EQ(flat.scale_view(all, 1).data<float>(), scales.data() + 2);
  spec.transposed = true;
  EXPECT_EQ(Flat("tensor", spec, params).scale_count(), 2);
  EXPECT_THROW(Flat("vector", spec, {full_param("c", {8}, {}, false)}), InternalError);
}

TEST(FlatPieces, RunsOfTheGlobalTensor) {
  const Flat flat("f", {}, {sliced_param("down", {4, 5}, 1, {.begin = 5, .total = 10}, {}, true)});
  const SegmentRange piece = segment_ranges(flat, 3, 9).front();
  std::vector<std::array<std::int64_t, 3>> runs;
  for_each_global_run(segment_of(flat, piece), piece, [&](std::int64_t global, std::int64_t at, std::int64_t count) {
    runs.push_back({global, at, count});
  });
  EXPECT_EQ(runs, (std::vector<std::array<std::int64_t, 3>>{{8, 0, 2}, {15, 2, 5}, {25, 7, 2}}));
}

}  // namespace flat_test
}  // namespace hawser::nn
