// Redistribute over two ranks: each has half of the MLP's inner channels, and half of the attention heads.
#include <gtest/gtest.h>

#include "nn/blocks/attention_layer.h"
#include "nn/blocks/mlp_layer.h"
#include "seams.h"

namespace hawser::testing {
namespace {

using nn::Boundary;
using nn::LayerContext;
using nn::testing::LayerResult;
using nn::testing::LayerRun;
using nn::testing::normals;
using nn::testing::TestContext;
using nn::testing::TestSink;

// Tensor parallelism: an all-reduce after the row-parallel GEMM in forward, and before the column-parallel one in
// backward.
class SumRedistribute : public nn::Redistribute {
 public:
  TensorView forward(LayerContext& ctx, Boundary boundary, const TensorView& x) override {
    return boundary == Boundary::row_output ? sum(ctx, x) : x;
  }
  TensorView backward(LayerContext& ctx, Boundary boundary, const TensorView& dy) override {
    return boundary == Boundary::column_input ? sum(ctx, dy) : dy;
  }

 private:
  static TensorView sum(LayerContext& ctx, const TensorView& x) {
    ctx.exchange_after_compute();
    const std::int64_t bytes = comm::all_reduce_workspace(x.elements(), x.dtype(), 2, DeviceKind::cpu);
    pair().all_reduce(ctx.exchange(), x, comm::Reduction::sum, ctx.temp(DType::u8, {bytes}));
    ctx.compute_after_exchange();
    return x;
  }
};

constexpr std::size_t kWidth = 12, kRows = 10;

// This rank's part of parameter p: rows or columns of it, or all.
using Cut = std::function<std::vector<double>(std::size_t p, const std::vector<double>& full)>;

LayerResult run(const nn::Layer& layer, const std::vector<std::vector<double>>& weights, const nn::SavePolicy& policy,
                bool split) {
  const auto device = make_cpu_device();
  TestContext ctx(*device, DType::f32);
  for (std::size_t p = 0; p < weights.size(); ++p) {
    ctx.weights_.push_back(ctx.make(DType::f32, layer.params()[p].shape, weights[p]));
  }
  nn::testing::set_batch(ctx, {{3, 7}}, 4);
  if (split) ctx.seams_.redistribute = std::make_shared<SumRedistribute>();
  TestSink sink(ctx, layer.params());
  LayerRun layer_run(ctx, layer, kRows, kWidth, policy);
  layer_run.run(sink);
  return layer_run.result(sink);
}

void expect_equal(const nn::Layer& full, const nn::Layer& part, const Cut& cut) {
  std::vector<std::vector<double>> weights, mine;
  for (std::size_t p = 0; p < full.params().size(); ++p) {
    const nn::Param& param = full.params()[p];
    weights.push_back(normals(param.name, param.elements(), 0.3));
    mine.push_back(cut(p, weights.back()));
  }
  for (const nn::SavePolicy& policy : nn::testing::all_policies()) {
    SCOPED_TRACE(nn::testing::text(policy));
    const LayerResult expected = run(full, weights, policy, false), got = run(part, mine, policy, true);
    EXPECT_LT(nn::testing::distance(got.y, expected.y), 1e-5);
    EXPECT_LT(nn::testing::distance(got.dx, expected.dx), 1e-5);
    for (std::size_t p = 0; p < weights.size(); ++p) {
      EXPECT_LT(nn::testing::distance(got.gradients[p], cut(p, expected.gradients[p])), 1e-5) << full.params()[p].name;
    }
  }
}

TEST(Redistribute, AnMlpSplitByColumnsAndRowsEqualsOneRank) {
  const auto config = [](std::int64_t inner, bool bias) {
    return nn::MlpConfig{.width = kWidth,
                         .inner = inner,
                         .bias = bias,
                         .norm = "norm",
                         .gate = "gate",
                         .up = "up",
                         .down = "down",
                         .fused = "gate_up"};
  };
  constexpr std::size_t kInner = 14, kHalf = kInner / 2;
  const std::size_t begin = static_cast<std::size_t>(pair().index()) * kHalf;
  const auto both = range(begin, begin + kHalf) + range(kInner + begin, kInner + begin + kHalf);  // of gate and of up
  const Cut cut = [&](std::size_t p, const std::vector<double>& w) {
    if (p == 1) return rows_of(w, kWidth, both);             // gate_up.weight
    if (p == 2) return columns_of(w, kInner, begin, kHalf);  // down.weight
    if (p == 3) return rows_of(w, 1, both);                  // gate_up.bias
    return w;                                                // norm, down.bias
  };
  for (const bool bias : {false, true}) {
    expect_equal(nn::MlpLayer(config(kInner, bias)), nn::MlpLayer(config(kHalf, bias)), cut);
  }
}

TEST(Redistribute, AttentionSplitByHeadsEqualsOneRank) {
  const auto config = [](std::int64_t heads, std::int64_t kv_heads) {
    return nn::AttentionConfig{.width = kWidth,
                               .heads = heads,
                               .kv_heads = kv_heads,
                               .head_dim = 4,
                               .qkv_bias = true,
                               .output_bias = true,
                               .norm = "norm",
                               .q = "q",
                               .k = "k",
                               .v = "v",
                               .output = "o",
                               .fused = "qkv"};
  };
  const std::size_t rank = static_cast<std::size_t>(pair().index());
  // 16 rows of q, 8 of k, 8 of v.
  const auto mine =
      range(rank * 8, rank * 8 + 8) + range(16 + rank * 4, 20 + rank * 4) + range(24 + rank * 4, 28 + rank * 4);
  const Cut cut = [&](std::size_t p, const std::vector<double>& w) {
    if (p == 1) return rows_of(w, kWidth, mine);
    if (p == 2) return columns_of(w, 16, rank * 8, 8);
    if (p == 3) return rows_of(w, 1, mine);
    return w;
  };
  expect_equal(nn::AttentionLayer(config(4, 2)), nn::AttentionLayer(config(2, 1)), cut);
}

}  // namespace
}  // namespace hawser::testing
