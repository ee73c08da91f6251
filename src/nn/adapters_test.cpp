// Several adapters of one Linear, with magnitudes (DoRA) and dropout, against a float64 reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "nn/blocks/linear.h"
#include "nn/testing/block_reference.h"

namespace hawser::nn {
namespace adapters_test {

using testing::distance;
using testing::normals;
using testing::TestContext;
using testing::TestSink;
using testing::Vector;

constexpr std::int64_t kRows = 5, kIn = 8, kOut = 6, kRank = 2, kFirst = 1, kOutputs = 4;
constexpr double kProbability = 0.4, kScale = 1.5;

// Of the adapter's number; 1 / (1 - probability) or 0.
Vector dropout_mask(std::uint32_t index) {
  Vector mask;
  for (std::int64_t i = 0; i < kRows * kIn; ++i) {
    const auto column = static_cast<std::uint32_t>(i % kIn), row = static_cast<std::uint32_t>(i / kIn);
    const auto site = static_cast<std::uint32_t>(Site::up_projection);
    const std::uint32_t word = philox({column / 4, row, 3, 9}, {site, index})[column % 4];
    mask.push_back(word * 0x1p-32 < kProbability ? 0.0 : 1 / (1 - kProbability));
  }
  return mask;
}

std::size_t at(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

// The terms of PEFT's formula, with W an own matrix of every adapter with a magnitude:
//   y = x W^T + b + sum over adapters of dropout(x) (f * (W + s B A) - W)^T, or of s dropout(x) (B A)^T
// Norms are constants: those of the first call.
class Reference {
 public:
  Reference(const Linear& linear, bool training) : linear_(linear), training_(training) {}

  Vector operator()(const Vector& x, const std::vector<Vector>& w) {
    Vector y = testing::linear(x, w[0], w[1], kIn);
    for (std::size_t i = 0; i < linear_.adapters.size(); ++i) {
      const Adapter& adapter = linear_.adapters[i];
      const Vector &a = w[at(adapter.a)], &b = w[at(adapter.b)];
      Vector in = x;
      if (training_ && adapter.dropout > 0) {
        const Vector mask = dropout_mask(number_of(i));
        for (std::size_t k = 0; k < in.size(); ++k) in[k] *= mask[k];
      }
      Vector delta;
      for (std::int64_t row = 0; row < adapter.outputs; ++row) {
        Vector added(at(kIn));
        for (std::int64_t c = 0; c < kIn; ++c) {
          for (std::int64_t k = 0; k < kRank; ++k) {
            added[at(c)] += adapter.scale * b[at(row * kRank + k)] * a[at((adapter.a_row + k) * kIn + c)];
          }
        }
        if (adapter.magnitude >= 0) {
          double squares = 0;
          for (std::int64_t c = 0; c < kIn; ++c) {
            added[at(c)] += w[0][at((adapter.first_output + row) * kIn + c)];
            squares += added[at(c)] * added[at(c)];
          }
          const double norm = norms_.try_emplace({i, row}, std::sqrt(squares)).first->second;
          for (std::int64_t c = 0; c < kIn; ++c) {
            added[at(c)] = w[at(adapter.magnitude)][at(row)] / norm * added[at(c)] -
                           w[0][at((adapter.first_output + row) * kIn + c)];
          }
        }
        delta.insert(delta.end(), added.begin(), added.end());
      }
      const Vector term = testing::linear(in, delta, {}, kIn);
      for (std::int64_t t = 0; t < kRows; ++t) {
        for (std::int64_t r = 0; r < adapter.outputs; ++r) {
          y[at(t * kOut + adapter.first_output + r)] += term[at(t * adapter.outputs + r)];
        }
      }
    }
    return y;
  }

 private:
  // Adapters with the same A have one number.
  std::uint32_t number_of(std::size_t adapter) const {
    std::vector<std::pair<int, std::int64_t>> known;
    for (std::size_t i = 0; i <= adapter; ++i) {
      const std::pair own(linear_.adapters[i].a, linear_.adapters[i].a_row);
      const auto found = std::ranges::find(known, own);
      if (i == adapter) return static_cast<std::uint32_t>(found - known.begin());
      if (found == known.end()) known.push_back(own);
    }
    return 0;
  }

  const Linear& linear_;
  bool training_;
  std::map<std::pair<std::size_t, std::int64_t>, double> norms_;
};

TEST(Adapters, SumOfTheirTermsAndGradients) {
  const Adapter all{.a = 2, .b = 3, .rank = kRank, .outputs = kOut, .scale = kScale};
  const Adapter some{.a = 4, .b = 5, .magnitude = 6, .rank = kRank, .first_output = kFirst, .outputs = kOutputs};
  const Adapter same{.a = 7, .b = 8, .magnitude = 9, .rank = kRank, .first_output = kFirst, .outputs = kOutputs};
  // Two that share an A, for all rows of W together.
  const Adapter upper{.a = 11, .b = 12, .rank = kRank, .outputs = 2, .scale = kScale};
  const Adapter lower{
      .a = 11, .b = 8, .rank = kRank, .first_output = 2, .outputs = kOutputs, .a_row = kRank, .scale = kScale};
  // One A with the two halves of a B.
  Adapter top = {.a = 2, .b = 12, .rank = kRank, .outputs = 2, .scale = kScale};
  Adapter bottom = {.a = 2, .b = 8, .rank = kRank, .first_output = 2, .outputs = kOutputs, .scale = kScale};
  Adapter dropping_top = top, dropping_bottom = bottom;
  dropping_top.dropout = dropping_bottom.dropout = kProbability;
  Adapter top_magnitude = top, bottom_magnitude = bottom, both_top = dropping_top, both_bottom = dropping_bottom;
  top_magnitude.magnitude = both_top.magnitude = 13;
  bottom_magnitude.magnitude = both_bottom.magnitude = 9;
  Adapter dropping = some, first = all, all_dropping = all;
  dropping.dropout = kProbability;
  all_dropping.dropout = kProbability;
  first.magnitude = 10;
  const std::vector<Param> params = {full_param("w", {kOut, kIn}, {}, true),
                                     full_param("b", {kOut}, {}, true),
                                     full_param("a0", {kRank, kIn}, {}, true),
                                     full_param("b0", {kOut, kRank}, {}, true),
                                     full_param("a1", {kRank, kIn}, {}, true),
                                     full_param("b1", {kOutputs, kRank}, {}, true),
                                     full_param("m1", {kOutputs}, {}, true),
                                     full_param("a2", {kRank, kIn}, {}, true),
                                     full_param("b2", {kOutputs, kRank}, {}, true),
                                     full_param("m2", {kOutputs}, {}, true),
                                     full_param("m0", {kOut}, {}, true),
                                     full_param("a3", {2 * kRank, kIn}, {}, true),
                                     full_param("b3", {2, kRank}, {}, true),
                                     full_param("m3", {2}, {}, true)};
  const Adapter plain{.a = 4, .b = 5, .rank = kRank, .first_output = kFirst, .outputs = kOutputs};
  const std::vector<std::vector<Adapter>> cases = {{some},
                                                   {dropping},
                                                   {all, some},
                                                   {some, same},
                                                   {dropping, same, all},
                                                   {first, some},
                                                   {all},
                                                   {all_dropping},
                                                   {upper, lower},
                                                   {lower, all, upper},
                                                   {all, plain},
                                                   {plain},
                                                   {plain, all},
                                                   {top, bottom},
                                                   {plain, top, bottom},
                                                   {dropping_top, dropping_bottom, dropping},
                                                   {top_magnitude, bottom_magnitude},
                                                   {both_top, both_bottom, dropping}};
  for (std::size_t c = 0; c < cases.size(); ++c) {
    for (const bool training : {true, false}) {
      for (const bool accumulate : {false, true}) {
        // Both or none of what passes may share.
        const bool shares = training != accumulate;
        SCOPED_TRACE(cat("case ", c, training ? ", training" : "", accumulate ? ", accumulating" : ""));
        const Linear linear{.site = Site::up_projection, .weight = 0, .bias = 1, .adapters = cases[c]};
        const auto device = make_cpu_device({.threads = 1});
        TestContext ctx(*device, DType::f32);
        Vector x = normals("x", kRows * kIn), ids;
        const Vector dy = normals("dy", kRows * kOut);
        std::vector<Vector> weights;
        for (const Param& param : params) {
          weights.push_back(normals(param.name, param.elements()));
          ctx.weights_.push_back(ctx.make(DType::f32, param.shape, weights.back()));
        }
        for (std::int64_t t = 0; t < kRows; ++t) ids.insert(ids.end(), {3.0, static_cast<double>(t)});
        ctx.batch_.row_ids = ctx.make(DType::i32, {kRows, 2}, ids);
        ctx.step_ = ctx.make(DType::i32, {1}, {9});
        ctx.training_ = training;
        ctx.rows_ = {kRows, kRows};
        const TensorView y = ctx.make(DType::f32, {kRows, kOut}), dx = ctx.make(DType::f32, {kRows, kIn}),
                         xs = ctx.make(DType::f32, {kRows, kIn}, x), dys = ctx.make(DType::f32, {kRows, kOut}, dy);
        TestSink sink(ctx, params, accumulate, 2.0);
        AdapterTensors tensors;
        if (shares && linear.adapter_ranks() > 0) {
          tensors.inner = ctx.make(DType::f32, {linear.adapter_ranks(), kRows});
          tensors.inner_gradient = linear.make_inner_gradient(ctx);
        }
        // In one piece, or in two.
        const std::int64_t cut = accumulate ? kRows : 2;
        for (const std::int64_t row : {std::int64_t{0}, cut}) {
          const std::int64_t rows = row == 0 ? cut : kRows - row;
          if (rows == 0) continue;
          linear.forward(ctx, xs.rows(row, rows), y.rows(row, rows), tensors.inner, row);
          linear.adapter_gradient(ctx, dys.rows(row, rows), tensors.inner_gradient, row);
          linear.input_gradient(ctx, dys.rows(row, rows), dx.rows(row, rows), tensors.inner_gradient, row);
        }
        linear.weight_gradient(ctx, dys, xs, sink, tensors);
        ctx.finish();

        Reference reference(linear, training);
        EXPECT_LT(distance(testing::get(y), reference(x, weights)), 2e-6);
        const auto objective = [&] { return testing::dot(dy, reference(x, weights)); };
        EXPECT_LT(distance(testing::get(dx), testing::differences(objective, x)), 3e-6);
        for (std::size_t p = 0; p < params.size(); ++p) {
          if (sink.asked()[p] == 0) continue;
          Vector expected = testing::differences(objective, weights[p]);
          for (double& value : expected) value += accumulate ? 2.0 : 0.0;
          EXPECT_LT(distance(testing::get(sink.views()[p]), expected), 3e-6) << params[p].name;
        }
      }
    }
  }
}

TEST(Adapters, OfOneTargetHaveNames) {
  std::vector<Param> params;
  const std::vector<AdapterTarget> targets = {{"q", {{0, 6}}}};
  const auto adapters =
      add_adapters({{.target = "q", .rank = 2}, {.target = "q", .rank = 3, .magnitude = true, .name = "second"}},
                   targets, 8, {}, params);
  ASSERT_EQ(adapters.size(), 2u);
  std::vector<std::string> names;
  for (const Param& param : params) names.push_back(param.name);
  EXPECT_EQ(names, (std::vector<std::string>{"q.lora_A.weight", "q.lora_A.second.weight", "q.lora_B.weight",
                                             "q.lora_B.second.weight", "q.lora_magnitude_vector.second.weight"}));
  EXPECT_EQ(params[4].initial.rows_of, "q.weight");
  EXPECT_THROW(add_adapters({{.target = "q", .rank = 4}}, targets, 8, {}, params), InternalError);
}

// The A of plain adapters that have the same input are one parameter.
TEST(Adapters, ThatShareAnInputShareAParameter) {
  const std::vector<AdapterTarget> targets = {{"m.q", {{0, 6}}}, {"m.k", {{6, 2}}}, {"m.v", {{8, 2}}}};
  const auto names_of = [&](const std::vector<AdapterConfig>& configs, DimSlice part = {}) {
    std::vector<Param> params;
    const auto adapters = add_adapters(configs, targets, 8, part, params);
    std::vector<std::string> names;
    for (const Param& param : params) names.push_back(param.name);
    for (const Adapter& adapter : adapters) {
      const Param& a = params[static_cast<std::size_t>(adapter.a)];
      const auto has_a = [&](const Segment& s) { return s.row == adapter.a_row && s.rows == adapter.rank; };
      EXPECT_EQ(std::ranges::count_if(a.segments, has_a), 1) << a.name;
    }
    return names;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names_of({{.target = "m.v", .rank = 2}, {.target = "m.q", .rank = 2}}),
            (Names{"v+m.q.lora_A.weight", "m.q.lora_B.weight", "m.v.lora_B.weight"}));
  for (const AdapterConfig& other :
       {AdapterConfig{.target = "m.q", .rank = 4}, AdapterConfig{.target = "m.q", .rank = 2, .scale = 2},
        AdapterConfig{.target = "m.q", .rank = 2, .dropout = 0.1},
        AdapterConfig{.target = "m.q", .rank = 2, .name = "n"}}) {
    EXPECT_EQ(names_of({{.target = "m.k", .rank = 2}, other}).size(), 4u);
  }
}

// On a tensor rank with rows 2-3 of four of q, and row 1 of two of each of k and v, of one tensor of eight rows.
TEST(Adapters, OfSeveralRangesHaveSlicesOfOneTensor) {
  const std::vector<AdapterConfig> configs = {{.target = "qkv", .rank = 3, .dropout = 0.5, .magnitude = true},
                                              {.target = "qkv", .rank = 3, .name = "n"}};
  const auto params_of = [&](bool kv_copies, std::size_t adapters) {
    const AdapterTarget target{"qkv",
                               {{0, 2, {2, 8}, false, IndexRange{0, 4}},
                                {2, 1, {5, 8}, kv_copies, IndexRange{4, 2}},
                                {3, 1, {7, 8}, kv_copies, IndexRange{6, 2}}},
                               {{4, 4}, {0, 4}}};
    std::vector<Param> params;
    const auto added = add_adapters(configs, {target}, 5, {}, params);
    EXPECT_EQ(added.size(), adapters);
    for (const Adapter& adapter : added) {
      EXPECT_EQ(params[static_cast<std::size_t>(adapter.b)].shape, (Shape{adapter.outputs, 3}));
      EXPECT_EQ(adapter.a, adapter.dropout > 0 ? 0 : 1);
    }
    return params;
  };
  const auto expect_slices = [](const std::vector<Param>& params, const std::string& tensor, std::int64_t columns) {
    std::vector<std::pair<std::int64_t, std::int64_t>> rows;
    std::vector<std::optional<IndexRange>> ranges;
    for (const Param& param : params) {
      for (const Segment& segment : param.segments) {
        if (segment.name != tensor) continue;
        EXPECT_EQ(segment.global, columns > 0 ? Shape({8, columns}) : Shape{8});
        EXPECT_EQ(segment.file.row_order.size(), 2u);
        rows.emplace_back(segment.slice->begin, segment.slice->size);
        ranges.push_back(segment.range);
      }
    }
    EXPECT_EQ(rows, (std::vector<std::pair<std::int64_t, std::int64_t>>{{2, 2}, {5, 1}, {7, 1}})) << tensor;
    EXPECT_EQ(ranges, (std::vector<std::optional<IndexRange>>{{{0, 4}}, {{4, 2}}, {{6, 2}}})) << tensor;
  };
  for (const bool copies : {false, true}) {
    const std::vector<Param> params = params_of(copies, copies ? 4 : 2);
    EXPECT_EQ(params.size(), copies ? 8u : 5u);
    for (const char* name : {"qkv.lora_B.weight", "qkv.lora_B.n.weight"}) expect_slices(params, name, 3);
    expect_slices(params, "qkv.lora_magnitude_vector", 0);
    for (const Param& param : params) {
      const bool of_copies = copies && param.name.starts_with("rows_2+");
      EXPECT_EQ(param.flat.domain == Domain::kv_copies, of_copies) << param.name;
      EXPECT_EQ(param.flat.partial_gradient, of_copies || param.name.find("lora_A") != std::string::npos);
    }
  }
  std::vector<Param> params;
  EXPECT_THROW(add_adapters(configs, {{"qkv", {{0, 2, {2, 8}}, {2, 2}}}}, 5, {}, params), InternalError);
  EXPECT_THROW(add_adapters(configs, {{"qkv", {{0, 2, {2, 8}}, {3, 1, {5, 8}}}}}, 5, {}, params), InternalError);
}

}  // namespace adapters_test
}  // namespace hawser::nn
