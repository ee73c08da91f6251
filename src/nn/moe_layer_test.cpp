// Experts: rows that are no tokens, skewed routing, the auxiliary losses, and what recompute runs. Values, gradients
// and policies are in layers_test.cpp.
#include <gtest/gtest.h>

#include <set>

#include "nn/testing/block_reference.h"
#include "ops/moe/router.h"

namespace hawser::nn {
namespace moe_layer_test {

using testing::distance;
using testing::LayerResult;
using testing::LayerRun;
using testing::normals;
using testing::TestContext;
using testing::TestSink;
using testing::Vector;

MoeConfig config_of(std::int64_t experts, std::int64_t top_k) {
  MoeConfig config{.width = 8, .experts = experts, .top_k = top_k, .inner = 6};
  config.norm = "norm", config.router = "router";
  config.gate = "experts.{}.gate", config.up = "experts.{}.up", config.down = "experts.{}.down";
  return config;
}

// A context with the statistics and factors of one layer.
class RouterContext : public TestContext {
 public:
  using TestContext::TestContext;
  AuxiliaryViews auxiliary() const override { return views_; }
  AuxiliaryViews views_;
};

struct MoeRun {
  MoeConfig config;
  std::vector<Vector> weights;
  Vector x, dy;
  Vector mask;  // empty: all rows are tokens
  Vector factors;

  explicit MoeRun(const MoeConfig& c, std::int64_t rows) : config(c) {
    const MoeLayer layer(c, std::make_shared<RouterLoss>(c.loss()));
    for (const Param& param : layer.params()) {
      const bool ones = param.initial.kind == Initial::Kind::ones;
      weights.push_back(normals(param.name, param.elements(), ones ? 0.1 : 0.3, ones ? 1.0 : 0.0));
    }
    x = normals("x", rows * c.width), dy = normals("dy", rows * c.width);
  }
  // Appends the statistics to the gradients.
  LayerResult run(const SavePolicy& policy = {}, DType dtype = DType::f32) const {
    const auto device = make_cpu_device({.threads = 1});
    const MoeLayer layer(config, std::make_shared<RouterLoss>(config.loss()));
    RouterContext ctx(*device, dtype);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const Param& param = layer.params()[i];
      ctx.weights_.push_back(ctx.make(param.flat.gathered.value_or(dtype), param.shape, weights[i]));
    }
    const auto rows = static_cast<std::int64_t>(x.size()) / config.width;
    testing::set_batch(ctx, {{rows}}, 2);
    if (!mask.empty()) ctx.batch_.token_mask = ctx.make(DType::i32, {rows}, mask);
    const TensorView statistics = ctx.make(DType::f32, {ops::router_statistics_size(config.experts)});
    TestSink sink(ctx, layer.params());
    LayerRun layer_run(ctx, layer, config.width, policy, x, dy);
    layer_run.run(sink, [&](Pass pass) {
      ctx.views_ = {};
      if (pass == Pass::forward) ctx.views_.statistics = statistics;
      if (pass == Pass::backward && !factors.empty()) {
        ctx.views_.factors = ctx.make(DType::f32, {ops::router_factors_size(config.experts)}, factors);
      }
    });
    LayerResult result = layer_run.result(sink);
    result.gradients.push_back(testing::get(statistics));
    return result;
  }
};

Vector first(const Vector& all, std::size_t count) {
  return Vector(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count));
}

// Padding rows, which are not even finite in other tensors, change nothing but themselves: y = residual.
TEST(MoeLayer, RowsThatAreNoTokensHaveNoExpert) {
  constexpr std::size_t kTokens = 9, kWidth = 8;
  MoeRun tokens(config_of(4, 2), kTokens), padded(config_of(4, 2), kTokens + 4);
  tokens.x = first(padded.x, kTokens * kWidth), tokens.dy = first(padded.dy, kTokens * kWidth);
  padded.mask.assign(kTokens + 4, 1);
  for (std::size_t t = kTokens; t < kTokens + 4; ++t) padded.mask[t] = 0;
  for (const SavePolicy& policy : {SavePolicy{}, SavePolicy{Checkpointing::full, true}}) {
    const LayerResult a = tokens.run(policy), b = padded.run(policy);
    EXPECT_EQ(first(b.y, a.y.size()), a.y);
    EXPECT_EQ(first(b.dx, a.dx.size()), a.dx);
    EXPECT_EQ(Vector(b.y.begin() + kTokens * kWidth, b.y.end()),
              Vector(padded.x.begin() + kTokens * kWidth, padded.x.end()));
    EXPECT_EQ(Vector(b.dx.begin() + kTokens * kWidth, b.dx.end()),
              Vector(padded.dy.begin() + kTokens * kWidth, padded.dy.end()));
    for (std::size_t p = 0; p < a.gradients.size(); ++p) {
      EXPECT_LT(distance(b.gradients[p], a.gradients[p]), 1e-6) << p;  // GEMMs of other sizes
    }
  }
}

// All tokens to one expert, more than a group's block of rows; the others get no token and no gradient.
TEST(MoeLayer, AllTokensToOneExpert) {
  constexpr std::int64_t kRows = 150;
  MoeRun run(config_of(3, 1), kRows);
  run.config.normalise_top_k = false;
  for (std::int64_t t = 0; t < kRows; ++t) {
    for (std::int64_t i = 0; i < 8; ++i) {
      double& value = run.x[static_cast<std::size_t>(t * 8 + i)];
      value = std::abs(value);
    }
  }
  for (std::size_t i = 0; i < 24; ++i) run.weights[1][i] = i / 8 == 1 ? 0.5 : -0.5;
  const LayerResult got = run.run();
  EXPECT_LT(distance(got.y, testing::moe_block(run.config, run.x, run.weights)), 3e-6);
  EXPECT_EQ(got.gradients.back()[1], kRows);
  const Vector &gate_up = got.gradients[2], &down = got.gradients[3];
  for (std::size_t i = 0; i < gate_up.size(); ++i) {
    if (i / (gate_up.size() / 3) == 1) continue;
    ASSERT_EQ(gate_up[i], 0);
  }
  for (std::size_t i = 0; i < down.size(); ++i) {
    if (i / (down.size() / 3) == 1) continue;
    ASSERT_EQ(down[i], 0);
  }
  const auto objective = [&] { return testing::dot(run.dy, testing::moe_block(run.config, run.x, run.weights)); };
  EXPECT_LT(distance(down, testing::differences(objective, run.weights[3])), 3e-6);
  EXPECT_LT(distance(got.gradients[1], testing::differences(objective, run.weights[1])), 3e-6);
}

// The gradient of the model's loss and of sums of the statistics together.
TEST(MoeLayer, AuxiliaryLossesReachTheRouter) {
  constexpr std::size_t kRows = 10;
  for (const bool normalise : {true, false}) {
    MoeRun run(config_of(4, 2), kRows);
    run.config.normalise_top_k = normalise;
    run.factors = {0.7, -1.1, 0.3, 0.9, 0.4};
    const auto statistics = [&] {
      const Vector normed = testing::rms_norm(run.x, run.weights[0], run.config.norm_config.epsilon);
      const Vector logits = testing::linear(normed, run.weights[1], {}, 8);
      Vector out(10);
      for (std::size_t t = 0; t < kRows; ++t) {
        double sum = 0;
        for (std::size_t e = 0; e < 4; ++e) sum += std::exp(logits[t * 4 + e]);
        for (std::size_t e = 0; e < 4; ++e) out[4 + e] += std::exp(logits[t * 4 + e]) / sum;
        out[8] += std::pow(std::log(sum), 2);
      }
      return out;
    };
    const auto objective = [&] {
      const Vector s = statistics();
      double sum = testing::dot(run.dy, testing::moe_block(run.config, run.x, run.weights));
      for (std::size_t i = 0; i < 5; ++i) sum += run.factors[i] * s[4 + i];
      return sum;
    };
    const LayerResult got = run.run();
    Vector expected = statistics();
    testing::moe_block(run.config, run.x, run.weights, [&](std::size_t, std::size_t e, double) { expected[e] += 1; });
    expected[9] = kRows;
    EXPECT_LT(distance(got.gradients.back(), expected), 1e-6);
    EXPECT_LT(distance(got.dx, testing::differences(objective, run.x)), 3e-6);
    for (std::size_t p = 0; p < 4; ++p) {
      EXPECT_LT(distance(got.gradients[p], testing::differences(objective, run.weights[p])), 3e-6) << p;
    }
    for (const SavePolicy& policy : testing::all_policies()) {
      const LayerResult other = run.run(policy);
      EXPECT_EQ(other.dx, got.dx) << testing::text(policy);
      EXPECT_EQ(other.gradients, got.gradients) << testing::text(policy);
    }
  }
}

// Recompute runs the norm, copies the rows and runs one grouped GEMM, and never the router.
TEST(MoeLayer, RecomputeReadsTheSavedRouting) {
  const MoeConfig config = config_of(4, 2);
  const MoeLayer layer(config, std::make_shared<RouterLoss>(config.loss()));
  for (const SavePolicy& policy : testing::all_policies()) {
    EXPECT_EQ(recomputes(layer, policy, {}), policy.recomputes_gate_up());
    MetaDevice device;
    TestContext ctx(device, DType::bf16);
    for (const Param& param : layer.params()) {
      ctx.weights_.push_back(ctx.make(param.flat.gathered.value_or(DType::bf16), param.shape));
    }
    testing::set_batch(ctx, {{20}}, 2);
    TestSink sink(ctx, layer.params());
    LayerRun run(ctx, layer, 20, config.width, policy);
    run.run(sink, [&](Pass pass) { device.set_instruction(static_cast<int>(pass)); });
    std::vector<std::string> recomputed;
    double gemms = 0;
    for (const TraceItem& item : device.trace().items) {
      if (item.kind != TraceItem::Kind::work) continue;
      if (item.instruction == static_cast<int>(Pass::recompute)) recomputed.emplace_back(item.record.name);
      if (item.instruction == static_cast<int>(Pass::forward))
        gemms += item.record.kind == OpKind::gemm ? item.record.flops : 0;
    }
    EXPECT_EQ(gemms, layer.flops({20, 20}, 0));
    EXPECT_EQ(gemms, layer.flops({20, 40}, 0)) << "with sequence parallelism, of the rows that it routes";
    EXPECT_EQ(recomputed, policy.recomputes_gate_up()
                              ? (std::vector<std::string>{"rms_norm_forward", "dispatch_rows", "grouped_gemm"})
                              : std::vector<std::string>());
  }
}

TEST(MoeLayer, HasATensorForEachExpert) {
  const MoeConfig config = config_of(3, 2);
  const MoeLayer layer(config, std::make_shared<RouterLoss>(config.loss()));
  std::vector<std::string> names;
  std::set<std::string> params;
  for (const Param& param : layer.params()) {
    params.insert(param.name);
    for (const Segment& segment : param.segments) names.push_back(segment.name);
  }
  EXPECT_EQ(params.size(), 4u);
  EXPECT_EQ(names, (std::vector<std::string>{"norm.weight", "router.weight", "experts.0.gate.weight",
                                             "experts.0.up.weight", "experts.1.gate.weight", "experts.1.up.weight",
                                             "experts.2.gate.weight", "experts.2.up.weight", "experts.0.down.weight",
                                             "experts.1.down.weight", "experts.2.down.weight"}));
}

TEST(MoeLayer, APartHasItsOwnExperts) {
  MoeConfig config = config_of(6, 2);
  const MoeLayer all(config, std::make_shared<RouterLoss>(config.loss()));
  std::vector<std::string> names;
  std::set<std::string> params;
  for (int index = 0; index < 3; ++index) {
    config.experts_shard = {.index = index, .count = 3};
    const MoeLayer layer(config, std::make_shared<RouterLoss>(config.loss()));
    EXPECT_EQ(layer.params()[1].shape, all.params()[1].shape) << "the router scores all experts";
    for (const int p : {2, 3}) {
      const Param& param = layer.params()[static_cast<std::size_t>(p)];
      const Param& complete = all.params()[static_cast<std::size_t>(p)];
      EXPECT_EQ(param.flat, complete.flat);
      EXPECT_EQ(param.shape[0] * 3, complete.shape[0]);
      EXPECT_TRUE(params.insert(param.name).second) << param.name;
      const std::size_t count = param.segments.size();
      for (std::size_t s = 0; s < count; ++s) {
        const Segment& other = complete.segments[static_cast<std::size_t>(index) * count + s];
        EXPECT_EQ(param.segments[s].name, other.name);
        EXPECT_EQ(param.segments[s].global, other.global);
      }
    }
  }
  config.experts_shard.count = 4;
  EXPECT_THROW(MoeLayer(config, std::make_shared<RouterLoss>(config.loss())), InternalError);
}

}  // namespace moe_layer_test
}  // namespace hawser::nn
