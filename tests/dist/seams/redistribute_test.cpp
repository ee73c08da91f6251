// Redistribute over two ranks, with and without sequence parallelism: each has half of the MLP's inner channels, and
// half of the attention heads.
#include <gtest/gtest.h>

#include "nn/blocks/attention_layer.h"
#include "nn/blocks/mlp_layer.h"
#include "ops/copy/copy.h"
#include "parallel/tensor/sequence_parallel.h"
#include "parallel/tensor/tensor_parallel.h"
#include "parallel/tensor/tensor_sums.h"
#include "seams.h"

namespace hawser::testing {
namespace redistribute_test {

using nn::testing::LayerResult;
using nn::testing::LayerRun;
using nn::testing::normals;
using nn::testing::TestContext;
using nn::testing::TestSink;
using parallel::SequenceParallel;
using parallel::TensorParallel;
using parallel::TensorSums;

constexpr std::size_t kWidth = 12, kRows = 10, kOwnRows = kRows / 2;

// This rank's part of parameter p: rows or columns of it, or all.
using Cut = std::function<std::vector<double>(std::size_t p, const std::vector<double>& full)>;
using Seam = std::shared_ptr<nn::Redistribute>;

std::size_t rank() {
  return static_cast<std::size_t>(pair().index());
}

std::vector<double> own_rows(const std::vector<double>& matrix) {
  return rows_of(matrix, kWidth, range(rank() * kOwnRows, (rank() + 1) * kOwnRows));
}

// The layer over all rows, or with sequence parallelism over this rank's.
LayerResult run(const nn::Layer& layer, const std::vector<std::vector<double>>& weights, const nn::SavePolicy& policy,
                const Seam& seam, bool sequence_parallel) {
  const auto device = make_cpu_device({.random_delay_s = 2e-4});
  TestContext ctx(*device, DType::f32);
  for (std::size_t p = 0; p < weights.size(); ++p) {
    ctx.weights_.push_back(ctx.make(DType::f32, layer.params()[p].shape, weights[p]));
  }
  nn::testing::set_batch(ctx, {{3, 7}}, 4);
  std::vector<double> ids;
  for (std::size_t t = 0; t < kRows; ++t) ids.insert(ids.end(), {5.0, static_cast<double>(t)});
  ctx.batch_.row_ids = ctx.make(DType::i32, {kRows, 2}, ids);
  ctx.step_ = ctx.make(DType::i32, {1}, {9});
  ctx.training_ = true;
  if (seam != nullptr) ctx.seams_.redistribute = seam;
  if (seam != nullptr) ctx.seams_.tensor_reduce = std::make_shared<TensorSums>(pair());
  std::vector<double> x = normals("x", kRows * kWidth), dy = normals("dy", kRows * kWidth);
  if (sequence_parallel) {
    ctx.row_parts_ = 2;
    ctx.row_part_ = pair().index();
    x = own_rows(x);
    dy = own_rows(dy);
  }
  TestSink sink(ctx, layer.params());
  LayerRun layer_run(ctx, layer, kWidth, policy, x, dy);
  layer_run.run(sink);
  return layer_run.result(sink);
}

std::vector<double> sum_over_ranks(const std::vector<double>& values) {
  const auto device = make_cpu_device();
  TestContext ctx(*device, DType::f32);
  const TensorView sum = ctx.make(DType::f32, {static_cast<std::int64_t>(values.size())}, values);
  TensorSums(pair()).sum(ctx, sum);
  ctx.finish();
  return nn::testing::get(sum);
}

// The largest difference from the full layer on one rank, over all results and policies.
double difference(const nn::Layer& full, const nn::Layer& part, const Cut& cut, const Seam& seam,
                  bool sequence_parallel) {
  std::vector<std::vector<double>> weights, mine;
  for (std::size_t p = 0; p < full.params().size(); ++p) {
    const nn::Param& param = full.params()[p];
    weights.push_back(normals(param.name, param.elements(), 0.3));
    mine.push_back(cut(p, weights.back()));
  }
  double worst = 0;
  const auto compare = [&](const std::vector<double>& got, const std::vector<double>& expected) {
    worst = std::max(worst, nn::testing::distance(got, expected));
  };
  for (const nn::SavePolicy& policy : nn::testing::all_policies()) {
    LayerResult expected = run(full, weights, policy, nullptr, false);
    const LayerResult got = run(part, mine, policy, seam, sequence_parallel);
    if (sequence_parallel) {
      expected.y = own_rows(expected.y);
      expected.dx = own_rows(expected.dx);
    }
    compare(got.y, expected.y);
    compare(got.dx, expected.dx);
    for (std::size_t p = 0; p < weights.size(); ++p) {
      const nn::Param& param = part.params()[p];
      const bool partial = param.flat.partial_gradient || (sequence_parallel && param.of_residual_rows);
      compare(partial ? sum_over_ranks(got.gradients[p]) : got.gradients[p], cut(p, expected.gradients[p]));
    }
  }
  return worst;
}

void expect_equal(const nn::Layer& full, const nn::Layer& part, const Cut& cut) {
  for (const std::int64_t piece_rows : {3, 100}) {  // three pieces of 4, 4 and 2 rows, or one
    EXPECT_LT(difference(full, part, cut, std::make_shared<TensorParallel>(pair(), piece_rows), false), 1e-5);
  }
  EXPECT_LT(difference(full, part, cut, std::make_shared<SequenceParallel>(pair()), true), 1e-5);
}

nn::MlpConfig mlp_config(std::size_t inner, bool bias) {
  return {.width = kWidth,
          .inner = static_cast<std::int64_t>(inner),
          .bias = bias,
          .norm = "norm",
          .gate = "gate",
          .up = "up",
          .down = "down",
          .fused = "gate_up"};
}

// An MLP, and this rank's half of it.
struct SplitMlp {
  std::size_t inner = 0;
  bool bias = false;
  nn::MlpLayer full{mlp_config(inner, bias)}, half{mlp_config(inner / 2, bias)};

  Cut cut() const {
    const std::size_t count = inner / 2, begin = rank() * count;
    const auto both = range(begin, begin + count) + range(inner + begin, inner + begin + count);  // of gate and of up
    return [inner = inner, count, begin, both](std::size_t p, const std::vector<double>& w) {
      if (p == 1) return rows_of(w, kWidth, both);            // gate_up.weight
      if (p == 2) return columns_of(w, inner, begin, count);  // down.weight
      if (p == 3) return rows_of(w, 1, both);                 // gate_up.bias
      return w;                                               // norm, down.bias
    };
  }
};

TEST(Redistribute, AnMlpSplitByColumnsAndRowsEqualsOneRank) {
  for (const bool bias : {false, true}) {
    const SplitMlp mlp{14, bias};
    expect_equal(mlp.full, mlp.half, mlp.cut());
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
  // 16 rows of q, 8 of k, 8 of v.
  const auto mine = range(rank() * 8, rank() * 8 + 8) + range(16 + rank() * 4, 20 + rank() * 4) +
                    range(24 + rank() * 4, 28 + rank() * 4);
  const Cut cut = [&](std::size_t p, const std::vector<double>& w) {
    if (p == 1) return rows_of(w, kWidth, mine);
    if (p == 2) return columns_of(w, 16, rank() * 8, 8);
    if (p == 3) return rows_of(w, 1, mine);
    return w;
  };
  expect_equal(nn::AttentionLayer(config(4, 2)), nn::AttentionLayer(config(2, 1)), cut);
}

// Layers that each rank has all of. With sequence parallelism, attention gathers what its Linears compute of the rank's
// rows, and all of its gradients but those of the heads' norms are parts of sums.
TEST(Redistribute, LayersThatAreNotSlicedEqualOneRank) {
  const Cut all = [](std::size_t, const std::vector<double>& w) { return w; };
  nn::MlpConfig mlp = mlp_config(14, true);
  nn::AttentionConfig attention{.width = kWidth,
                                .heads = 3,
                                .kv_heads = 1,
                                .head_dim = 4,
                                .qkv_bias = true,
                                .output_bias = true,
                                .qk_norm = nn::NormConfig{},
                                .norm = "norm",
                                .q = "q",
                                .k = "k",
                                .v = "v",
                                .output = "o",
                                .fused = "qkv",
                                .q_norm = "q_norm",
                                .k_norm = "k_norm"};
  const nn::MlpLayer one_mlp(mlp);
  const nn::AttentionLayer one_attention(attention);
  mlp.sliced = attention.sliced = false;
  expect_equal(one_mlp, nn::MlpLayer(mlp), all);
  expect_equal(one_attention, nn::AttentionLayer(attention), all);
}

// The sum is read from y, where the seam leaves it, and from nowhere else: neither from what the GEMM has written, nor
// from another view.
TEST(Redistribute, ASumThatIsNotInYIsFound) {
  class Elsewhere : public nn::Redistribute {
   public:
    std::unique_ptr<Gather> gather(nn::LayerContext& ctx, const nn::Scaled& x, Rows needed) override {
      return right_.gather(ctx, x, needed);
    }
    std::unique_ptr<Sum> sum(nn::LayerContext& ctx, const TensorView& y, const TensorView& residual,
                             Order order) override {
      ops::fill(ctx.compute(), {.y = y});
      return right_.sum(ctx, ctx.temp(y.dtype(), y.shape()), residual, order);
    }

   private:
    SequenceParallel right_{pair()};
  };
  const SplitMlp mlp{4};
  EXPECT_LT(difference(mlp.full, mlp.half, mlp.cut(), std::make_shared<SequenceParallel>(pair()), true), 1e-5);
  EXPECT_GT(difference(mlp.full, mlp.half, mlp.cut(), std::make_shared<Elsewhere>(), true), 0.1);
}

}  // namespace redistribute_test
}  // namespace hawser::testing
