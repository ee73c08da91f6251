// `Case`: a layer with values of its parameters and a float64 reference, for tests of layers.
#pragma once

#include <gtest/gtest.h>

#include "nn/blocks/linear.h"
#include "nn/testing/block_reference.h"

namespace hawser::nn::testing {

struct Case {
  std::string name;
  std::shared_ptr<Layer> layer;
  std::int64_t width = 0, head_dim = 2;  // head_dim: the rotated dims of a head
  Documents documents;
  std::function<Vector(const Vector& x, const std::vector<Vector>& w)> reference;
  bool interleaved = false;  // RopeViews::interleaved
  NormPlace norm_place = NormPlace::pre;
  Vector slopes = {};  // LayerContext::alibi_slopes
};

inline Case attention(const std::string& name, AttentionConfig config, const Documents& documents = {{9}},
                      const RotatedDims& rotated = {}) {
  config.norm = "norm", config.q = "q", config.k = "k", config.v = "v", config.output = "o", config.fused = "qkv";
  config.q_norm = "q_norm", config.k_norm = "k_norm", config.post_norm = "post_norm";
  Case out{name,
           std::make_shared<AttentionLayer>(config),
           config.width,
           rotated.count.value_or(config.head_dim),
           documents,
           [config, documents, rotated](const Vector& x, const std::vector<Vector>& w) {
             return attention_block(config, documents, x, w, rotated);
           },
           rotated.interleaved,
           config.norm_place};
  if (config.alibi) {
    for (const float slope : config.alibi_slopes()) out.slopes.push_back(slope);
  }
  return out;
}

inline Case mlp(const std::string& name, MlpConfig config) {
  config.norm = "norm", config.gate = "gate", config.up = "up", config.down = "down", config.fused = "gate_up";
  config.post_norm = "post_norm";
  return {name,         std::make_shared<MlpLayer>(config),
          config.width, 2,
          {{11}},       [config](const Vector& x, const std::vector<Vector>& w) { return mlp_block(config, x, w); },
          false,        config.norm_place};
}

inline Case moe(const std::string& name, MoeConfig config) {
  config.norm = "norm", config.router = "router";
  config.gate = "experts.{}.gate", config.up = "experts.{}.up", config.down = "experts.{}.down";
  return {name,         std::make_shared<MoeLayer>(config, std::make_shared<RouterLoss>(config.loss())),
          config.width, 2,
          {{11}},       [config](const Vector& x, const std::vector<Vector>& w) { return moe_block(config, x, w); }};
}

// The reference of a layer with adapters: its weights with scale * B A added to their rows. `places`: for each adapter
// in the layer's order, the weight's index, its first row and its columns.
struct AdapterPlace {
  std::size_t weight = 0, first_row = 0, columns = 0;
};

// Where add_adapters puts the parameters of the adapters: of each Linear A, which those without magnitudes share, then
// B and the magnitude of each.
struct AdapterIndices {
  std::size_t a = 0, a_row = 0, b = 0;  // the magnitude follows B
};
inline std::vector<AdapterIndices> adapter_indices(const std::vector<AdapterPlace>& places, std::size_t base,
                                                   std::size_t rank, bool magnitudes) {
  std::vector<AdapterIndices> out;
  for (std::size_t first = 0, end = 0; first < places.size(); first = end) {
    while (end < places.size() && places[end].weight == places[first].weight) ++end;
    const std::size_t count = end - first, matrices = magnitudes ? count : 1, each = magnitudes ? 2 : 1;
    for (std::size_t i = 0; i < count; ++i) {
      out.push_back({magnitudes ? base + i : base, magnitudes ? 0 : i * rank, base + matrices + each * i});
    }
    base += matrices + each * count;
  }
  return out;
}

// `magnitudes`: each adapter has one (DoRA), after its B. The norms are constants for differences of the reference:
// those of the weights that it gets first.
inline Case with_adapters(Case c, std::size_t base, const std::vector<AdapterPlace>& places, std::size_t rank,
                          double scale, bool magnitudes = false) {
  const auto norms = std::make_shared<std::vector<Vector>>();
  const std::vector<AdapterIndices> indices = adapter_indices(places, base, rank, magnitudes);
  c.reference = [=, plain = c.reference](const Vector& x, const std::vector<Vector>& w) {
    std::vector<Vector> merged(w.begin(), w.begin() + static_cast<std::ptrdiff_t>(base));
    const bool first = norms->empty();
    for (std::size_t i = 0; i < places.size(); ++i) {
      const AdapterPlace& at = places[i];
      const Vector &a = w[indices[i].a], &b = w[indices[i].b];
      const std::size_t a_first = indices[i].a_row * at.columns;
      if (first) norms->emplace_back();
      for (std::size_t row = 0; row < b.size() / rank; ++row) {
        double* const values = &merged[at.weight][(at.first_row + row) * at.columns];
        double squares = 0;
        for (std::size_t column = 0; column < at.columns; ++column) {
          for (std::size_t r = 0; r < rank; ++r) {
            values[column] += scale * b[row * rank + r] * a[a_first + r * at.columns + column];
          }
          squares += values[column] * values[column];
        }
        if (!magnitudes) continue;
        if (first) norms->back().push_back(std::sqrt(squares));
        for (std::size_t column = 0; column < at.columns; ++column) {
          values[column] *= w[indices[i].b + 1][row] / (*norms)[i][row];
        }
      }
    }
    return plain(x, merged);
  };
  return c;
}

inline std::vector<Case> cases() {
  return {
      attention("plain", {.width = 12, .heads = 3, .kv_heads = 3, .head_dim = 4}),
      attention("grouped heads, independent head_dim", {.width = 10, .heads = 4, .kv_heads = 2, .head_dim = 6}),
      attention("one key head, biases",
                {.width = 12, .heads = 4, .kv_heads = 1, .head_dim = 4, .qkv_bias = true, .output_bias = true}),
      attention("qkv bias only", {.width = 8, .heads = 2, .kv_heads = 2, .head_dim = 4, .qkv_bias = true}),
      attention("output bias only, scaled rope",
                {.width = 8, .heads = 2, .kv_heads = 2, .head_dim = 4, .output_bias = true, .rope_scale = 1.25}),
      attention("packed documents", {.width = 12, .heads = 4, .kv_heads = 2, .head_dim = 4}, {{1, 5, 2, 7}}),
      attention("window over packed documents", {.width = 12, .heads = 2, .kv_heads = 1, .head_dim = 6, .window = 3},
                {{8, 6}}),
      attention("a part of each head rotated, interleaved",
                {.width = 12, .heads = 4, .kv_heads = 2, .head_dim = 6, .rope_scale = 1.25}, {{4, 5}},
                {.count = 4, .interleaved = true}),
      attention("no rope, not causal",
                {.width = 12, .heads = 2, .kv_heads = 2, .head_dim = 6, .rope = std::nullopt, .causal = false},
                {{4, 5}}),
      attention("norms of q and k", {.width = 10, .heads = 4, .kv_heads = 2, .head_dim = 6, .qk_norm = NormConfig()},
                {{4, 5}}),
      attention("Gemma's norms", {.width = 9,
                                  .heads = 4,
                                  .kv_heads = 1,
                                  .head_dim = 4,
                                  .output_bias = true,
                                  .norm_config = {.epsilon = 1e-6, .unit_offset = true},
                                  .norm_place = NormPlace::sandwich,
                                  .qk_norm = NormConfig{.epsilon = 1e-6, .unit_offset = true},
                                  .window = 4,
                                  .scale = 0.4}),
      attention("norm of the sum, not causal",
                {.width = 10,
                 .heads = 4,
                 .kv_heads = 2,
                 .head_dim = 4,
                 .qkv_bias = true,
                 .output_bias = true,
                 .norm_place = NormPlace::post,
                 .rope = std::nullopt,
                 .causal = false},
                {{4, 5}}),
      attention(
          "soft-capped scores of norms of q and k",
          {.width = 10, .heads = 4, .kv_heads = 2, .head_dim = 6, .qk_norm = NormConfig(), .window = 3, .softcap = 0.7},
          {{8, 6}}),
      attention("ALiBi", {.width = 12, .heads = 3, .kv_heads = 1, .head_dim = 4, .rope = std::nullopt, .alibi = true},
                {{4, 7}}),
      attention("ALiBi of a part of the heads, after a soft cap",
                {.width = 12,
                 .heads = 2,
                 .kv_heads = 2,
                 .head_dim = 4,
                 .heads_slice = {.begin = 2, .total = 6},
                 .kv_heads_slice = {.begin = 2, .total = 6},
                 .causal = false,
                 .softcap = 0.7,
                 .alibi = true},
                {{9, 3}}),
      attention("dropout of a part of the heads, of a norm of the sum",
                {.width = 12,
                 .heads = 4,
                 .kv_heads = 2,
                 .head_dim = 4,
                 .heads_slice = {.begin = 4, .total = 8},
                 .kv_heads_slice = {.begin = 2, .total = 4},
                 .norm_place = NormPlace::post,
                 .dropout = 0.4},
                {{9, 3}}),
      mlp("mlp", {.width = 10, .inner = 14}),
      mlp("mlp with a norm of the sum", {.width = 10, .inner = 7, .bias = true, .norm_place = NormPlace::post}),
      mlp("mlp with norms before and after, GELU gate", {.width = 9,
                                                         .inner = 7,
                                                         .bias = true,
                                                         .norm_config = {.epsilon = 1e-6, .unit_offset = true},
                                                         .norm_place = NormPlace::sandwich,
                                                         .activation = Activation::geglu_tanh}),
      mlp("mlp with an exact GELU gate", {.width = 10, .inner = 14, .activation = Activation::geglu}),
      mlp("mlp with biases", {.width = 10, .inner = 7, .bias = true}),
      moe("experts", {.width = 10, .experts = 4, .top_k = 2, .inner = 7}),
      moe("one expert per token", {.width = 8, .experts = 3, .top_k = 1, .inner = 6, .normalise_top_k = false}),
      with_adapters(
          attention("adapters of q, v and the output", {.width = 10,
                                                        .heads = 4,
                                                        .kv_heads = 2,
                                                        .head_dim = 4,
                                                        .qkv_bias = true,
                                                        .adapters = {{"o", 3, 0.5}, {"v", 3, 0.5}, {"q", 3, 0.5}}}),
          4, {{1, 0, 10}, {1, 24, 10}, {2, 0, 16}}, 3, 0.5),
      with_adapters(attention("adapters beside norms of q and k", {.width = 10,
                                                                   .heads = 4,
                                                                   .kv_heads = 2,
                                                                   .head_dim = 4,
                                                                   .norm_place = NormPlace::sandwich,
                                                                   .qk_norm = NormConfig(),
                                                                   .adapters = {{"q", 3, 0.5}, {"v", 3, 0.5}}}),
                    6, {{1, 0, 10}, {1, 24, 10}}, 3, 0.5),
      with_adapters(
          mlp("adapters and a norm of the sum",
              {.width = 10, .inner = 7, .norm_place = NormPlace::post, .adapters = {{"up", 2, 2.0}, {"down", 2, 2.0}}}),
          3, {{1, 7, 10}, {2, 0, 7}}, 2, 2.0),
      with_adapters(mlp("adapters of all of an MLP",
                        {.width = 10, .inner = 7, .adapters = {{"gate", 2, 2.0}, {"up", 2, 2.0}, {"down", 2, 2.0}}}),
                    3, {{1, 0, 10}, {1, 7, 10}, {2, 0, 7}}, 2, 2.0),
      with_adapters(
          attention("magnitudes of k and the output", {.width = 10,
                                                       .heads = 4,
                                                       .kv_heads = 2,
                                                       .head_dim = 4,
                                                       .qkv_bias = true,
                                                       .output_bias = true,
                                                       .adapters = {{"o", 3, 0.5, 0, true}, {"k", 3, 0.5, 0, true}}}),
          5, {{1, 16, 10}, {2, 0, 16}}, 3, 0.5, true),
      with_adapters(mlp("magnitudes of all of an MLP",
                        {.width = 10,
                         .inner = 7,
                         .adapters = {{"gate", 2, 2.0, 0, true}, {"up", 2, 2.0, 0, true}, {"down", 2, 2.0, 0, true}}}),
                    3, {{1, 0, 10}, {1, 7, 10}, {2, 0, 7}}, 2, 2.0, true),
  };
}

// Equal values for every run of a case.
inline std::vector<Vector> weights_of(const Case& c) {
  std::vector<Vector> out;
  for (const Param& param : c.layer->params()) {
    const bool ones = param.initial.kind == Initial::Kind::ones;
    out.push_back(normals(param.name, param.elements(), ones ? 0.1 : 0.3, ones ? 1.0 : 0.0));
  }
  return out;
}

inline void prepare(TestContext& ctx, const Case& c) {
  const std::vector<Vector> values = weights_of(c);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Param& param = c.layer->params()[i];
    ctx.weights_.push_back(ctx.make(param.flat.gathered.value_or(ctx.dtype()), param.shape, values[i]));
  }
  ctx.interleaved_ = c.interleaved;
  if (!c.slopes.empty()) {
    ctx.slopes_ = ctx.make(DType::f32, {static_cast<std::int64_t>(c.slopes.size())}, c.slopes);
  }
  set_batch(ctx, c.documents, c.head_dim, c.layer->attention_mask().value_or(AttentionMask()));
  if (!c.layer->draws_random_numbers()) return;
  ctx.training_ = true;
  std::vector<double> ids;
  for (std::int64_t t = 0; t < c.documents.rows(); ++t) ids.insert(ids.end(), {kDropoutSequence, kFirstRow + 1.0 * t});
  ctx.batch_.row_ids = ctx.batch_.attention_row_ids = ctx.make(DType::i32, {c.documents.rows(), 2}, ids);
  ctx.step_ = ctx.make(DType::i32, {1}, {kDropoutStep});
}

inline LayerResult run(const Case& c, DType dtype, const SavePolicy& policy, bool accumulate = false,
                       double start = 0) {
  const auto device = make_cpu_device({.threads = 1});
  TestContext ctx(*device, dtype);
  prepare(ctx, c);
  TestSink sink(ctx, c.layer->params(), accumulate, start);
  LayerRun layer_run(ctx, *c.layer, c.documents.rows(), c.width, policy);
  layer_run.run(sink);
  for (const int asked : sink.asked()) EXPECT_EQ(asked, 1) << c.name;
  return layer_run.result(sink);
}

inline void expect_derivatives(const Case& c, const LayerResult& got, double max) {
  std::vector<Vector> w = weights_of(c);
  const std::int64_t elements = c.documents.rows() * c.width;
  Vector x = normals("x", elements);
  const Vector dy = normals("dy", elements);
  EXPECT_LT(distance(got.y, c.reference(x, w)), max) << c.name << ": y";
  const auto objective = [&] { return dot(dy, c.reference(x, w)); };
  EXPECT_LT(distance(got.dx, differences(objective, x)), max) << c.name << ": dx";
  for (std::size_t p = 0; p < w.size(); ++p) {
    EXPECT_LT(distance(got.gradients[p], differences(objective, w[p])), max)
        << c.name << ": " << c.layer->params()[p].name;
  }
}

}  // namespace hawser::nn::testing
