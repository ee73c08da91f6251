// Attention and MLP layers: gradients against differences of a float64 reference, policies against each other, and the
// lifetimes of saved tensors.
#include <gtest/gtest.h>

#include "nn/testing/layer_cases.h"
#include "ops/attention/alibi.h"
#include "ops/gemm/gemm.h"

namespace hawser::nn {
namespace layers_test {

using testing::Case;
using testing::cases;
using testing::distance;
using testing::expect_derivatives;
using testing::LayerResult;
using testing::LayerRun;
using testing::normals;
using testing::prepare;
using testing::run;
using testing::TestContext;
using testing::TestSink;
using testing::Vector;
using testing::weights_of;

TEST(Layers, GradientsEqualTheReference) {
  for (const Case& c : cases()) expect_derivatives(c, run(c, DType::f32, {}), 3e-6);
}

TEST(Layers, GradientsInBf16) {
  for (const Case& c : cases()) {
    expect_derivatives(c, run(c, DType::bf16, {}), 2.5e-2);
    expect_derivatives(c, run(c, DType::bf16, {Checkpointing::full, true}), 2.5e-2);
  }
}

// Whatever is saved, recomputed or delayed, the same kernels get the same numbers: equal bits. (Two kernels compute
// MLP's inner activations, by the same formula in the same order.)
TEST(Layers, PoliciesAreEqual) {
  for (const Case& c : cases()) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const LayerResult plain = run(c, dtype, {});
      for (const SavePolicy& policy : testing::all_policies()) {
        const LayerResult other = run(c, dtype, policy);
        const std::string where = c.name + ": " + testing::text(policy);
        EXPECT_EQ(other.y, plain.y) << where;
        EXPECT_EQ(other.dx, plain.dx) << where;
        for (std::size_t p = 0; p < plain.gradients.size(); ++p) {
          EXPECT_EQ(other.gradients[p], plain.gradients[p]) << where << ": " << c.layer->params()[p].name;
        }
      }
    }
  }
}

TEST(Layers, GradientsAccumulateIfTheSinkRequestsIt) {
  for (const Case& c : cases()) {
    for (const SavePolicy& policy : {SavePolicy{}, SavePolicy{.delay_weight_gradients = true}}) {
      const LayerResult plain = run(c, DType::f32, policy), added = run(c, DType::f32, policy, true, 2.0);
      for (std::size_t p = 0; p < plain.gradients.size(); ++p) {
        Vector expected = plain.gradients[p];
        for (double& value : expected) value += 2.0;
        EXPECT_LT(distance(added.gradients[p], expected), 1e-6) << c.name << ": " << c.layer->params()[p].name;
      }
    }
  }
}

TEST(Layers, UnneededGradientsAreLeftOut) {
  for (const Case& c : cases()) {
    const LayerResult plain = run(c, DType::f32, {});
    for (int none = 0; none < static_cast<int>(c.layer->params().size()); ++none) {
      const auto device = make_cpu_device();
      TestContext ctx(*device, DType::f32);
      prepare(ctx, c);
      TestSink sink(ctx, c.layer->params());
      sink.reject(none);
      LayerRun layer_run(ctx, *c.layer, c.documents.rows(), c.width, {});
      layer_run.run(sink);
      const LayerResult got = layer_run.result(sink);
      EXPECT_EQ(got.dx, plain.dx);
      for (std::size_t p = 0; p < got.gradients.size(); ++p) {
        if (static_cast<int>(p) == none) continue;
        EXPECT_EQ(got.gradients[p], plain.gradients[p]) << c.name;
      }
    }
  }
}

TEST(Layers, MetaRecordsEqualTheCpus) {
  for (const Case& c : cases()) {
    for (const SavePolicy& policy : testing::all_policies()) {
      const auto cpu = make_cpu_device({.threads = 1});
      MetaDevice meta;
      std::vector<std::vector<OpRecord>> records;
      for (Device* device : {cpu.get(), static_cast<Device*>(&meta)}) {
        TestContext ctx(*device, DType::f32);
        prepare(ctx, c);
        TestSink sink(ctx, c.layer->params());
        LayerRun(ctx, *c.layer, c.documents.rows(), c.width, policy).run(sink);
        records.push_back(ctx.records());
      }
      ASSERT_EQ(records[0].size(), records[1].size()) << c.name;
      for (std::size_t i = 0; i < records[0].size(); ++i) {
        const OpRecord &a = records[0][i], &b = records[1][i];
        ASSERT_STREQ(a.name, b.name);
        EXPECT_EQ(a.flops, b.flops) << a.name;
        ASSERT_EQ(a.accesses.size(), b.accesses.size()) << a.name;
        for (std::size_t k = 0; k < a.accesses.size(); ++k) {
          EXPECT_EQ(a.accesses[k].row_bytes, b.accesses[k].row_bytes) << a.name;
          EXPECT_EQ(a.accesses[k].rows, b.accesses[k].rows) << a.name;
          EXPECT_EQ(a.accesses[k].stride, b.accesses[k].stride) << a.name;
          EXPECT_EQ(a.accesses[k].write, b.accesses[k].write) << a.name;
        }
      }
    }
  }
}

// The recompute pass runs only the ops that the policy names, each GEMM once, and norms once.
TEST(Layers, RecomputeRunsOnlyTheNeededOps) {
  for (const Case& c : cases()) {
    if (c.layer->auxiliary_loss() != nullptr) continue;  // experts: moe_layer_test.cpp
    const bool attention = c.layer->params()[1].name == "qkv.weight";
    const auto has = [&](const char* name) {
      return std::ranges::any_of(c.layer->params(), [&](const Param& param) { return param.name == name; });
    };
    const bool qk_norm = has("q_norm.weight");
    for (const SavePolicy& policy : testing::all_policies()) {
      MetaDevice device;
      TestContext ctx(device, DType::f32);
      prepare(ctx, c);
      TestSink sink(ctx, c.layer->params());
      LayerRun layer_run(ctx, *c.layer, c.documents.rows(), c.width, policy);
      layer_run.run(sink, [&](Pass pass) { device.set_instruction(static_cast<int>(pass)); });
      const bool expected = attention ? policy.recomputes_qkv() : policy.recomputes_gate_up();
      EXPECT_EQ(recomputes(*c.layer, policy, {}), expected);
      int norms = 0, gemms = 0, attentions = 0;
      double flops = 0;
      for (const TraceItem& item : device.trace().items) {
        const std::string name = item.record.name;
        if (item.instruction != static_cast<int>(Pass::forward) && name == "rms_norm_forward") ++norms;
        if (item.instruction != static_cast<int>(Pass::recompute)) continue;
        if (name == "attention_forward") ++attentions;
        if (name != "gemm") continue;
        ++gemms;
        flops += item.record.flops;
      }
      const std::string where = c.name + ": " + testing::text(policy);
      // The first GEMM and those of its adapters: two for the terms of rows, and two for norms.
      int first_gemms = 1, last_gemms = 1;
      std::int64_t elements = c.layer->params()[1].elements(), of_last = c.layer->params()[2].elements(), for_norms = 0;
      Shape a;
      for (const Param& param : c.layer->params()) {
        const bool second = param.name.starts_with("o.") || param.name.starts_with("down.");
        if (param.name.find("lora_") == std::string::npos) continue;
        if (second) {
          ++last_gemms;
          of_last += param.elements();
          continue;
        }
        if (param.name.find("lora_A") != std::string::npos) a = param.shape;
        if (param.name.find("lora_magnitude") != std::string::npos) {
          first_gemms += 2;
          for_norms += (param.elements() + a[0]) * a.elements();
          continue;
        }
        ++first_gemms;
        elements += param.elements();
      }
      // The last GEMM, if a norm's gradient needs its output.
      if (c.norm_place != NormPlace::pre && (attention ? policy.recomputes_attention() : expected)) {
        first_gemms += last_gemms;
        elements += of_last;
      }
      EXPECT_EQ(gemms, expected ? first_gemms : 0) << where;
      const double first = 2.0 * static_cast<double>(c.documents.rows() * elements + for_norms);
      EXPECT_EQ(flops, expected ? first : 0) << where;
      EXPECT_EQ(attentions, attention && policy.recomputes_attention() ? 1 : 0) << where;
      // A delayed weight gradient recomputes the normed rows once more instead of saving them. Those of q and k run
      // before attention and its gradient.
      const bool again = policy.recomputes_pointwise() && c.norm_place != NormPlace::post;
      const int of_rows = again ? (expected && policy.delay_weight_gradients ? 2 : 1) : 0;
      EXPECT_EQ(norms, of_rows + (qk_norm ? 2 + 2 * attentions : 0)) << where;
    }
  }
}

// Of heads 2 and 3 of four, and of padding.
TEST(Layers, SlopesOfBiasesHaveAFactor) {
  const AttentionConfig config{
      .heads = 3, .heads_slice = {.begin = 2, .total = 4}, .alibi = true, .alibi_scale = 0.125};
  const std::vector<float> all = ops::alibi_slopes(4);
  EXPECT_EQ(config.alibi_slopes(), (std::vector<float>{0.125f * all[2], 0.125f * all[3], 0.0f}));
}

// Dropout is of training, which needs to know the rows.
TEST(Layers, AttentionDropsProbabilitiesInTrainingOnly) {
  AttentionConfig config{.width = 12, .heads = 3, .kv_heads = 3, .head_dim = 4, .dropout = 0.4};
  const Case c = testing::attention("dropout", config, {{7}});
  EXPECT_TRUE(c.layer->draws_random_numbers());
  config.dropout = 0;
  const Case none = testing::attention("none", config, {{7}});
  EXPECT_FALSE(none.layer->draws_random_numbers());
  const auto device = make_cpu_device();
  for (const bool ids : {true, false}) {
    TestContext ctx(*device, DType::f32);
    prepare(ctx, c);
    if (!ids) ctx.batch_.row_ids = ctx.batch_.attention_row_ids = {};
    TestSink sink(ctx, c.layer->params());
    LayerRun training(ctx, *c.layer, c.documents.rows(), c.width, {});
    if (ids) {
      training.run(sink);
      EXPECT_GT(distance(training.result(sink).y, run(none, DType::f32, {}).y), 0.01);
    } else {
      EXPECT_THROW(training.run(sink), InternalError);
    }
    ctx.training_ = false;
    TestSink other_sink(ctx, c.layer->params());
    LayerRun evaluation(ctx, *c.layer, c.documents.rows(), c.width, {});
    evaluation.run(other_sink);
    EXPECT_EQ(evaluation.result(other_sink).y, run(none, DType::f32, {}).y);
  }
}

// y = x W^T + scale * (mask * x) A^T B^T, with the mask of the formula in ops/dropout/dropout.h.
TEST(Linear, DropsTheAdaptersInput) {
  constexpr std::int64_t kRows = 5, kIn = 8, kOut = 6, kRank = 2;
  constexpr double kProbability = 0.4, kScale = 1.5;
  const auto device = make_cpu_device({.threads = 1});
  TestContext ctx(*device, DType::f32);
  const Vector x = normals("x", kRows * kIn), dy = normals("dy", kRows * kOut), w = normals("w", kOut * kIn),
               a = normals("a", kRank * kIn), b = normals("b", kOut * kRank);
  ctx.weights_ = {ctx.make(DType::f32, {kOut, kIn}, w), ctx.make(DType::f32, {kRank, kIn}, a),
                  ctx.make(DType::f32, {kOut, kRank}, b)};
  Vector ids, mask;
  for (std::int64_t t = 0; t < kRows; ++t) ids.insert(ids.end(), {3.0, static_cast<double>(t)});
  for (std::int64_t i = 0; i < kRows * kIn; ++i) {
    const auto column = static_cast<std::uint32_t>(16 + i % kIn), row = static_cast<std::uint32_t>(i / kIn);
    const auto site = static_cast<std::uint32_t>(Site::down_projection);
    const std::uint32_t word = philox({column / 4, row, 3, 9}, {site, 0})[column % 4];
    mask.push_back(word * 0x1p-32 < kProbability ? 0.0 : 1 / (1 - kProbability));
  }
  ctx.batch_.row_ids = ctx.make(DType::i32, {kRows, 2}, ids);
  ctx.step_ = ctx.make(DType::i32, {1}, {9});
  const Linear linear{
      .site = Site::down_projection,
      .weight = 0,
      .adapters = {{.a = 1, .b = 2, .rank = kRank, .outputs = kOut, .scale = kScale, .dropout = kProbability}},
      .first_input = 16};

  for (const bool training : {true, false}) {
    ctx.training_ = training;
    const TensorView y = ctx.make(DType::f32, {kRows, kOut}), dx = ctx.make(DType::f32, {kRows, kIn}),
                     xs = ctx.make(DType::f32, {kRows, kIn}, x), dys = ctx.make(DType::f32, {kRows, kOut}, dy);
    TestSink sink(ctx, {full_param("w", {kOut, kIn}, {}, true), full_param("a", {kRank, kIn}, {}, true),
                        full_param("b", {kOut, kRank}, {}, true)});
    linear.forward(ctx, xs, y);
    linear.input_gradient(ctx, dys, dx);
    linear.weight_gradient(ctx, dys, xs, sink);
    ctx.finish();
    std::vector<Vector> at = {x, w, a, b};
    const auto reference = [&] {
      Vector in = at[0];
      for (std::size_t i = 0; training && i < in.size(); ++i) in[i] *= mask[i];
      Vector out = testing::linear(at[0], at[1], {}, kIn);
      const Vector added = testing::linear(testing::linear(in, at[2], {}, kIn), at[3], {}, kRank);
      for (std::size_t i = 0; i < out.size(); ++i) out[i] += kScale * added[i];
      return out;
    };
    EXPECT_LT(distance(testing::get(y), reference()), 1e-6);
    const auto objective = [&] { return testing::dot(dy, reference()); };
    EXPECT_LT(distance(testing::get(dx), testing::differences(objective, at[0])), 1e-6);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_LT(distance(testing::get(sink.views()[i]), testing::differences(objective, at[i + 1])), 1e-6) << i;
    }
  }
}

// A router: its weight is float32 in layers that compute in bf16, and nothing is rounded.
TEST(Linear, ComputesInTheDtypeOfItsWeight) {
  constexpr std::int64_t kRows = 5, kIn = 8, kOut = 6;
  const auto device = make_cpu_device({.threads = 1});
  TestContext ctx(*device, DType::bf16);
  Vector x = normals("x", kRows * kIn), dy = normals("dy", kRows * kOut);
  const Vector w = normals("w", kOut * kIn);
  for (double& value : x) value = static_cast<float>(value * 1.001);  // no bf16
  for (double& value : dy) value = static_cast<float>(value * 1.001);
  ctx.weights_ = {ctx.make(DType::f32, {kOut, kIn}, w)};
  const Linear linear{.weight = 0};
  const TensorView y = ctx.make(DType::f32, {kRows, kOut}), dx = ctx.make(DType::f32, {kRows, kIn}),
                   xs = ctx.make(DType::f32, {kRows, kIn}, x), dys = ctx.make(DType::f32, {kRows, kOut}, dy);
  TestSink sink(ctx, {full_param("w", {kOut, kIn}, {}, true)});
  linear.forward(ctx, xs, y);
  linear.input_gradient(ctx, dys, dx);
  linear.weight_gradient(ctx, dys, xs, sink);
  ctx.finish();
  std::vector<Vector> at = {x, w};
  const auto reference = [&] { return testing::linear(at[0], at[1], {}, kIn); };
  const auto objective = [&] { return testing::dot(dy, reference()); };
  EXPECT_LT(distance(testing::get(y), reference()), 1e-6);
  EXPECT_LT(distance(testing::get(dx), testing::differences(objective, at[0])), 1e-6);
  EXPECT_LT(distance(testing::get(sink.views()[0]), testing::differences(objective, at[1])), 1e-6);
}

// The gradient of a router's weight that is reduced in bf16: a GPU has no such GEMM. The bits are those of the GEMM.
TEST(Linear, RoundsGradientsOfFloat32OperandsOnce) {
  constexpr std::int64_t kRows = 300, kIn = 70, kOut = 40;
  const auto device = make_cpu_device({.threads = 1});
  for (const bool accumulate : {false, true}) {
    TestContext ctx(*device, DType::bf16);
    Vector x = normals("x", kRows * kIn), dy = normals("dy", kRows * kOut);
    for (double& value : x) value = static_cast<float>(value * 1.001);  // no bf16
    ctx.weights_ = {ctx.make(DType::f32, {kOut, kIn}, normals("w", kOut * kIn))};
    const TensorView xs = ctx.make(DType::f32, {kRows, kIn}, x), dys = ctx.make(DType::f32, {kRows, kOut}, dy);
    const Vector start = normals("start", kOut * kIn, 10);
    TestSink sink(ctx, {full_param("w", {kOut, kIn}, {}, true)}, accumulate, 0, DType::bf16);
    testing::set(sink.views()[0], start);
    Linear{.weight = 0}.weight_gradient(ctx, dys, xs, sink);
    ctx.finish();
    std::vector<std::string> names;
    for (const OpRecord& record : ctx.records()) names.emplace_back(record.name);
    EXPECT_EQ(names, (std::vector<std::string>{"gemm", accumulate ? "add" : "cast"}));
    ops::Gemm direct{.a = dys,
                     .b = xs,
                     .c = ctx.make(DType::bf16, {kOut, kIn}, start),
                     .transpose_a = true,
                     .accumulate = accumulate};
    direct.workspace = ctx.make(DType::u8, {ops::gemm_workspace(direct)});
    ops::gemm(ctx.compute(), direct);
    ctx.finish();
    EXPECT_EQ(testing::get(sink.views()[0]), testing::get(direct.c));
  }
}

// With a norm between the product and the sum, the residual is added later.
TEST(Linear, RowParallelAddsAResidualIfThereIsOne) {
  constexpr std::int64_t kRows = 4, kIn = 6, kOut = 3;
  const auto device = make_cpu_device({.threads = 1});
  TestContext ctx(*device, DType::f32);
  const Vector x = normals("x", kRows * kIn), w = normals("w", kOut * kIn), r = normals("r", kRows * kOut);
  ctx.weights_ = {ctx.make(DType::f32, {kOut, kIn}, w)};
  const RowParallelLinear linear({.weight = 0});
  const TensorView xs = ctx.make(DType::f32, {kRows, kIn}, x), residual = ctx.make(DType::f32, {kRows, kOut}, r);
  const TensorView with = ctx.make(DType::f32, {kRows, kOut}), without = ctx.make(DType::f32, {kRows, kOut});
  linear.forward(ctx, xs, residual, with);
  linear.forward(ctx, xs, {}, without);
  ctx.finish();
  Vector expected = testing::linear(x, w, {}, kIn);
  EXPECT_LT(distance(testing::get(without), expected), 1e-6);
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += r[i];
  EXPECT_LT(distance(testing::get(with), expected), 1e-6);
}

// Small integers and powers of two: all sums are exact, in float32 and in bf16.
TEST(Linear, ReadsScaledOperandsAsTheirProducts) {
  constexpr std::int64_t kRows = 5, kIn = 6, kOut = 4, kRank = 2;
  constexpr double kX = 0.25, kDy = 4, kW = 0.5;
  struct Factors {
    double x = 1, dy = 1, w = 1;
  };
  const auto device = make_cpu_device({.threads = 1});
  const auto integers = [](const std::string& name, std::int64_t count, double factor) {
    Vector out = normals(name, count, 2);
    for (double& value : out) value = factor * std::round(value);
    return out;
  };
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const bool transposed : {false, true}) {
      // `scales`: of the operands. `values`: what their values are multiplied by.
      const auto results = [&](Factors scales, Factors values) {
        TestContext ctx(*device, dtype);
        const auto scaled = [&](const std::string& name, std::int64_t rows, std::int64_t columns, double scale,
                                double factor) {
          const Vector all = integers(name, rows * columns, factor);
          Vector other;
          for (std::int64_t i = 0; i < columns * rows; ++i) other.push_back(all[i % rows * columns + i / rows]);
          return Scaled(ctx.make(dtype, {rows, columns}, all),
                        scale == 1 ? TensorView() : ctx.make(DType::f32, {1}, {scale}),
                        transposed ? ctx.make(dtype, {columns, rows}, other) : TensorView());
        };
        const Scaled x = scaled("x", kRows, kIn, scales.x, values.x),
                     dy = scaled("dy", kRows, kOut, scales.dy, values.dy),
                     w = scaled("w", kOut, kIn, scales.w, values.w);
        ctx.weights_ = {w.view, ctx.make(dtype, {kRank, kIn}, integers("a", kRank * kIn, 1)),
                        ctx.make(dtype, {kOut, kRank}, integers("b", kOut * kRank, 1)),
                        ctx.make(dtype, {kOut}, integers("bias", kOut, 1))};
        ctx.scales_ = {w.scale};
        ctx.transposed_ = {w.transposed};
        const Linear linear{
            .weight = 0, .bias = 3, .adapters = {{.a = 1, .b = 2, .rank = kRank, .outputs = kOut, .scale = 0.5}}};
        ctx.rows_ = {kRows, kRows};
        const ColumnParallelLinear column(linear);
        const RowParallelLinear row(linear);
        std::vector<Vector> out;
        const auto keep = [&](const TensorView& view) {
          ctx.finish();
          out.push_back(testing::get(view));
        };
        const std::vector<Param> params = {
            full_param("w", {kOut, kIn}, {}, true), full_param("a", {kRank, kIn}, {}, true),
            full_param("b", {kOut, kRank}, {}, true), full_param("c", {kOut}, {}, false)};
        TestSink column_sink(ctx, params, true, 3), row_sink(ctx, params);
        const TensorView y = ctx.make(dtype, {kRows, kOut}), z = ctx.make(dtype, {kRows, kOut}),
                         dx = ctx.make(dtype, {kRows, kIn}), dz = ctx.make(dtype, {kRows, kIn}),
                         residual = ctx.make(dtype, {kRows, kOut}, integers("residual", kRows * kOut, 1));
        column.forward(ctx, x, y);
        keep(y);
        column.input_gradient(ctx, dy, dx, {});
        keep(dx);
        column.weight_gradient(ctx, dy, x, column_sink);
        row.forward(ctx, x, residual, z);
        keep(z);
        const Scaled gradient = row.input_gradient(ctx, dy, dz, false).dy;
        keep(dz);
        row.linear().weight_gradient(ctx, gradient, x, row_sink);
        for (const TestSink* sink : {&column_sink, &row_sink}) {
          for (const TensorView& view : sink->views()) keep(view);
        }
        return out;
      };
      const std::vector<Vector> expected = results({}, {kX, kDy, kW});
      const std::vector<Vector> found = results({kX, kDy, kW}, {});
      for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(found[i], expected[i]) << i << to_string(dtype);
      EXPECT_NE(results({kX, kDy, 1}, {}), expected);
    }
  }
}

TEST(Layers, RecordedFlopsEqualTheFormula) {
  for (const Case& c : cases()) {
    MetaDevice device;
    TestContext ctx(device, DType::f32);
    prepare(ctx, c);
    ctx.batch_.masks.front().diagonal_pairs = 23;
    TestSink sink(ctx, c.layer->params());
    LayerRun layer_run(ctx, *c.layer, c.documents.rows(), c.width, {});
    double gemms[2] = {0, 0};  // GEMMs and attention of forward, of backward
    int pass = 0;
    layer_run.run(sink, [&](Pass p) { pass = static_cast<int>(p), device.set_instruction(pass); });
    for (const TraceItem& item : device.trace().items) {
      const std::string name = item.record.name;
      if (item.record.kind == OpKind::gemm || name.find("attention") == 0) {
        gemms[item.instruction == static_cast<int>(Pass::forward) ? 0 : 1] += item.record.flops;
      }
    }
    EXPECT_NEAR(gemms[0], c.layer->flops({c.documents.rows(), c.documents.rows()}, 23), 1e-6 * gemms[0]) << c.name;
    EXPECT_GE(gemms[1], 2 * gemms[0]) << c.name;
    // The gradient of a magnitude takes the output of its Linear once more, and the norms twice.
    const bool magnitudes = c.name.find("magnitudes") != std::string::npos;
    EXPECT_LE(gemms[1], (magnitudes ? 3.5 : 2.5) * gemms[0]) << c.name;
  }
}

}  // namespace layers_test
}  // namespace hawser::nn
