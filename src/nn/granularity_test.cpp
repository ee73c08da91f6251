#include "nn/granularity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>

namespace hawser::nn {
namespace granularity_test {

using Kind = Granularity::Kind;

// Assembled values by tensor; each element must come from one box.
using Tensors = std::map<std::string, std::vector<float>>;

// Calls visit(value, element of the tensor) for each value of the boxes.
template <class Visit>
void each_value(const NamedState& state, const Visit& visit) {
  const bool matrix = state.shape.rank() == 2;
  for (const Box& box : state.boxes) {
    const std::int64_t wide = matrix ? box.extent[1] : 1;
    for (std::int64_t i = 0; i < box.extent.elements(); ++i) {
      const std::int64_t row = box.offset[0] + i / wide;
      visit(box.view.data<float>()[i],
            static_cast<std::size_t>(matrix ? row * state.shape[1] + box.offset[1] + i % wide : row));
    }
  }
}

void assemble(Tensors& into, const std::vector<NamedState>& states) {
  for (const NamedState& state : states) {
    auto& values = into.try_emplace(state.name, static_cast<std::size_t>(state.shape.elements()), NAN).first->second;
    each_value(state, [&](float value, std::size_t element) {
      EXPECT_TRUE(std::isnan(values[element])) << state.name << " has an element twice";
      values[element] = value;
    });
  }
}

std::vector<float> counted(std::int64_t count, float from = 0) {
  std::vector<float> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), from);
  return values;
}

TensorView view_of(std::vector<float>& values) {
  return {reinterpret_cast<std::byte*>(values.data()),
          DType::f32,
          {static_cast<std::int64_t>(values.size())},
          DeviceKind::cpu};
}

// q, k fused: part `part` of two of q [4, 6] and k [2, 6]; a row-parallel matrix [4, 10]; a sliced bias [8]; an expert
// tensor [4, 3, 5] sliced by expert.
std::vector<Param> half(int part) {
  const auto rows = [&](const char* name, std::int64_t row, std::int64_t total) {
    return row_segment(name, row, total / 2, {0, 6}, {.begin = part * total / 2, .total = total});
  };
  return {fused_param("qk", {rows("q", 0, 4), rows("k", 2, 2)}, {3, 6}, {}, true),
          sliced_param("down", {4, 5}, 1, {.begin = part * 5, .total = 10}, {}, true),
          sliced_param("bias", {4}, 0, {.begin = part * 4, .total = 8}, {}, false)};
}

TEST(Granularity, OfTheSlicesOfTwoRanksIsThatOfTheTensor) {
  const Granularity row{.kind = Kind::row}, column{.kind = Kind::column}, matrix{.kind = Kind::matrix};
  struct Expected {
    Granularity granularity;
    std::map<std::string, std::int64_t> sizes;
    std::int64_t here;
  };
  for (const Expected& e : {Expected{{}, {{"q", 24}, {"k", 12}, {"down", 40}, {"bias", 8}}, 18 + 20 + 4},
                            Expected{row, {{"q", 4}, {"k", 2}, {"down", 4}, {"bias", 1}}, 2 + 1 + 4 + 1},
                            Expected{column, {{"q", 6}, {"k", 6}, {"down", 10}, {"bias", 8}}, 6 + 6 + 5 + 4},
                            Expected{matrix, {{"q", 1}, {"k", 1}, {"down", 1}, {"bias", 1}}, 4}}) {
    Tensors saved;
    std::int64_t all = 0;
    for (const auto& [name, size] : e.sizes) all += size;
    for (int part = 0; part < 2; ++part) {
      const Flat flat("f", {}, half(part));
      EXPECT_EQ(saved_count(flat, e.granularity), all);
      for (int shard = 0; shard < 2; ++shard) {
        const std::int64_t count = flat.total(2) / 2;
        const std::int64_t size = value_count(flat, e.granularity, count);
        if (!e.granularity.sharded()) {
          EXPECT_EQ(size, e.here);
        }
        std::vector<float> values = counted(size, static_cast<float>(100 * part));
        assemble(saved, value_states(flat, e.granularity, shard * count, count, view_of(values), "", false));
      }
      if (e.granularity.sharded()) continue;
      EXPECT_EQ(sum_count(flat, e.granularity), all);
      // Every rank loads all that it has.
      std::vector<float> values = counted(e.here);
      std::int64_t loaded = 0;
      for (const NamedState& state : value_states(flat, e.granularity, 0, 128, view_of(values), "", true)) {
        for (const Box& box : state.boxes) loaded += box.extent.elements();
      }
      EXPECT_EQ(loaded, e.here);
    }
    EXPECT_EQ(saved.size(), e.sizes.size());
    for (const auto& [name, size] : e.sizes) {
      ASSERT_EQ(saved.at(name).size(), static_cast<std::size_t>(size)) << name;
      for (const float value : saved.at(name)) EXPECT_FALSE(std::isnan(value)) << name;
    }
    // q's rows: two of each rank. down's columns: five of each.
    if (e.granularity == row) {
      EXPECT_EQ(saved.at("q"), (std::vector<float>{0, 1, 100, 101}));
    }
    if (e.granularity == column) {
      EXPECT_EQ(saved.at("down")[5], 100 + 12);
    }
  }
}

TEST(Granularity, OfBlocksIsNeverCutByAShard) {
  const Granularity blocks{.kind = Kind::block, .block = 256};
  const Flat flat("f", {.grain = 256}, {full_param("a", {5, 100}, {}, true), full_param("b", {3, 200}, {}, true)});
  EXPECT_EQ(flat.offset(1), 512);
  EXPECT_EQ(saved_count(flat, blocks), 2 + 3);
  for (const int parts : {1, 2, 3, 5}) {
    Tensors saved;
    const std::int64_t count = flat.total(parts) / parts;
    for (int part = 0; part < parts; ++part) {
      std::vector<float> values = counted(value_count(flat, blocks, count), static_cast<float>(part * count / 256));
      assemble(saved, value_states(flat, blocks, part * count, count, view_of(values), "x/", false));
    }
    EXPECT_EQ(saved, (Tensors{{"x/a", {0, 1}}, {"x/b", {2, 3, 4}}})) << parts;
  }
  EXPECT_THROW(value_count(Flat("g", {}, {}), blocks, 128), InternalError);
}

TEST(Granularity, OfAParameterIsSavedByOneRank) {
  const Granularity whole = kScaleGranularity;
  Tensors saved;
  for (int part = 0; part < 2; ++part) {
    const Flat flat("f", {}, half(part));
    EXPECT_EQ(value_count(flat, whole, 128), 3);
    std::vector<float> values{1, 2, 3};
    assemble(saved, value_states(flat, whole, 0, flat.total(1), view_of(values), "", false));
  }
  EXPECT_EQ(saved, (Tensors{{"bias", {3}}, {"down", {2}}, {"q", {1}}, {"k", {1}}}));
}

// Each expert's has the names of its segments, whichever experts are together on a rank.
TEST(Granularity, OfPartsHasTheNamesOfSegments) {
  const Granularity each = kScaleGranularity;
  const auto experts = [](int first, int count) {
    std::vector<Segment> segments;
    for (int i = 0; i < count; ++i) {
      segments.push_back({.name = cat(first + i, ".gate"), .row = 4 * i, .rows = 2});
      segments.push_back({.name = cat(first + i, ".up"), .row = 4 * i + 2, .rows = 2});
    }
    Param param = fused_param(cat("experts ", first), std::move(segments), {4 * count, 8}, {}, true);
    param.matrices = count;
    return param;
  };
  Tensors saved, expected{{"scale/norm", {9}}};
  for (const char* name : {"gate", "up"}) {
    for (int i = 0; i < 3; ++i) expected[cat("scale/", i, '.', name)] = {static_cast<float>(i)};
  }
  for (const auto& [first, count] : {std::pair{0, 2}, {2, 1}}) {
    std::vector<Param> params = {experts(first, count)};
    if (first == 0) params.push_back(full_param("norm", {8}, {}, false));
    const Flat flat("f", {}, params);
    std::vector<float> values = counted(count, static_cast<float>(first));
    if (first == 0) values.push_back(9);
    EXPECT_EQ(value_count(flat, each, 128), static_cast<std::int64_t>(values.size()));
    const int names = 2 * count + (first == 0 ? 1 : 0);
    EXPECT_EQ(saved_count(flat, each), names);
    assemble(saved, value_states(flat, each, 0, flat.total(1), view_of(values), "scale/", false));
    const std::vector<NamedState> all = value_states(flat, each, 128, 0, view_of(values), "scale/", true);
    EXPECT_EQ(all.size(), static_cast<std::size_t>(names));
    EXPECT_EQ(all[0].former_names, std::vector<std::string>());
    EXPECT_EQ(all[1].former_names, std::vector{cat("scale/", first, ".gate")});
  }
  EXPECT_EQ(saved, expected);
}

// Rows of q, k and v of a model with eight heads of two channels and two key-value heads, whose parameters are those of
// one rank, or of rank `part` of four, of which two have the same keys and values. `fused`: of one tensor.
std::vector<Param> attention(int part, bool fused) {
  struct Rows {
    const char* name;
    std::int64_t first, total;
  };
  const Rows q{"q", 0, 16}, k{"k", 16, 4}, v{"v", 20, 4};
  const auto rows = [&](const Rows& of, std::int64_t row, std::int64_t count, std::int64_t begin) {
    if (fused) return row_segment("qkv", row, count, {0, 8}, {of.first + begin, 24}, IndexRange{of.first, of.total});
    return row_segment(of.name, row, count, {0, 8}, part < 0 ? DimSlice{} : DimSlice{begin, of.total});
  };
  if (part < 0)
    return {fused_param("qkv", {rows(q, 0, 16, 0), rows(k, 16, 4, 0), rows(v, 20, 4, 0)}, {24, 8}, {}, true)};
  const std::int64_t kv = part / 2 * 2;
  return {fused_param(fused ? "qkv" : "q", {rows(q, 0, 4, 4 * part)}, {4, 8}, {}, true),
          fused_param("k+v", {rows(k, 0, 2, kv), rows(v, 2, 2, kv)}, {4, 8}, {}, true)};
}

// What tensors are together in a parameter differs between meshes, and so do slices, and what a parameter has of a
// fused tensor. Each mesh saves the same tensors.
TEST(Granularity, DoesNotDependOnWhatIsOneParameter) {
  const Granularity blocks{.kind = Kind::block, .block = 16};
  const auto test = [](const Granularity& granularity, bool fused, std::size_t count_of_v) {
    const bool one_each = granularity.kind == Kind::gemm_matrix;
    const std::string all_of_v = fused ? "s/qkv" : "s/v", of_v = fused ? "s/qkv[20:24]" : "s/v";
    const Flat one("f", {}, attention(-1, fused));
    std::vector<float> values = counted(value_count(one, granularity, one.total(1)));
    Tensors expected, saved;
    assemble(expected, value_states(one, granularity, 0, one.total(1), view_of(values), "s/", false));
    EXPECT_EQ(expected.at(granularity.sharded() ? all_of_v : of_v).size(),
              count_of_v * (fused && granularity.sharded() ? 6 : 1));
    for (int part = 0; part < 4; ++part) {
      // q and the copies of k and v are in flats of two domains; the second copy saves the second shard.
      const std::vector<Param> params = attention(part, fused);
      std::int64_t count = 0;
      for (int p = 0; p < 2; ++p) {
        const Flat flat("f", {}, {params[static_cast<std::size_t>(p)]});
        count += saved_count(flat, granularity);
        std::vector<float> own(static_cast<std::size_t>(value_count(flat, granularity, 128)), NAN);
        for (const NamedState& state : value_states(flat, granularity, 0, 128, view_of(own), "s/", true)) {
          std::vector<std::string> former;
          if (one_each && p == 1) former.emplace_back("s/k+v");
          if (one_each && fused) former.emplace_back("s/qkv");
          EXPECT_EQ(state.former_names, former);
          each_value(state, [&](float& value, std::size_t element) { value = expected.at(state.name)[element]; });
        }
        const bool copy = p == 1 && part % 2 == 1;
        if (copy && granularity.sharded()) own.clear();
        assemble(saved, value_states(flat, granularity, copy ? 128 : 0, copy ? 0 : 128, view_of(own), "s/", false));
      }
      EXPECT_EQ(count, saved_count(one, granularity));
    }
    EXPECT_EQ(saved, expected);
  };
  for (const bool fused : {false, true}) {
    test({}, fused, 32);
    test(blocks, fused, 2);
    test({.kind = Kind::row}, fused, 4);
    test({.kind = Kind::column}, fused, 8);
    test({.kind = Kind::matrix}, fused, 1);
    test({.kind = Kind::gemm_matrix}, fused, 1);
  }
}

// Blocks of columns: a slice of whole blocks, as NF4 has them. A width that is no multiple can be sliced by rows.
TEST(Granularity, OfBlocksOfSlicesIsThatOfTheTensor) {
  const Granularity blocks{.kind = Kind::block, .block = 8};
  Tensors saved;
  for (int part = 0; part < 2; ++part) {
    const Flat flat("f", {},
                    {sliced_param("down", {3, 16}, 1, {.begin = part * 16, .total = 32}, {}, true),
                     sliced_param("up", {8, 5}, 0, {.begin = part * 8, .total = 14}, {}, true),
                     sliced_param("bias", {16}, 0, {.begin = part * 16, .total = 32}, {}, false)});
    EXPECT_EQ(saved_count(flat, blocks), 12 + 9 + 4);
    for (int shard = 0; shard < 3; ++shard) {
      std::vector<float> values = counted(16, static_cast<float>(100 * part + 16 * shard));
      assemble(saved, value_states(flat, blocks, shard * 128, 128, view_of(values), "", false));
    }
  }
  EXPECT_EQ(saved.at("down"), (std::vector<float>{0, 1, 100, 101, 2, 3, 102, 103, 4, 5, 104, 105}));
  EXPECT_EQ(saved.at("up"), (std::vector<float>{16, 17, 18, 19, 20, 116, 117, 118, 119}));
  EXPECT_EQ(saved.at("bias"), (std::vector<float>{32, 33, 132, 133}));
}

}  // namespace granularity_test
}  // namespace hawser::nn
