// Ops at sizes of a real model: what the case tables are too small for.
#include <algorithm>
#include <cmath>

#include "base/philox.h"
#include "ops/activation/swiglu.h"
#include "ops/copy/copy.h"
#include "ops/embedding/embedding.h"
#include "ops/gemm/gemm.h"
#include "ops/loss/linear_cross_entropy.h"
#include "ops/reduce/sum_squares.h"
#include "ops/seed/init.h"
#include "support.h"

namespace hawser {
namespace {

class CudaOps : public testing::GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (device_ != nullptr) stream_ = device_->make_stream("test");
  }
  Storage normal(DType dtype, const Shape& shape, double std = 1.0) {
    Storage made(*device_, dtype, shape);
    ops::random_normal(*stream_, {.y = made, .seed = 1, .name = ++made_, .std = std});
    return made;
  }

  std::unique_ptr<Stream> stream_;
  std::uint64_t made_ = 0;
};

// More than 2^31 elements: the last ones must be reached, and nothing else.
TEST_F(CudaOps, IndicesPass32Bits) {
  const std::int64_t rows = 80000, hidden = 14336;  // 2.3e9 elements of gate and up
  const Storage gate_up(*device_, DType::bf16, {rows, 2 * hidden}), y(*device_, DType::bf16, {rows, hidden});
  ops::fill(*stream_, {.y = gate_up, .value = 1});
  ops::fill(*stream_, {.y = gate_up.view().rows(rows - 1, 1), .value = 2});
  ops::swiglu_forward(*stream_, {.gate_up = gate_up, .y = y});
  const auto last = get<Bf16>(*stream_, y.view().rows(rows - 1, 1)),
             before = get<Bf16>(*stream_, y.view().rows(rows - 2, 1));
  EXPECT_NEAR(static_cast<float>(last.back()), 4 / (1 + std::exp(-2.0)), 0.02);
  EXPECT_NEAR(static_cast<float>(before.back()), 1 / (1 + std::exp(-1.0)), 0.004);
  const Storage out(*device_, DType::f32, {1});
  ops::sum_squares(*stream_, {.x = gate_up, .out = out});
  const double expected = 2.0 * static_cast<double>(hidden) * static_cast<double>(rows + 3);
  EXPECT_NEAR(get<float>(*stream_, out)[0] / expected, 1, 1e-6);
}

TEST_F(CudaOps, EmbeddingGradientOfAWholeVocabulary) {
  const std::int64_t tokens = 16384, vocabulary = 128256, channels = 64;
  const RandomStream random(3, "ids");
  std::vector<std::int32_t> ids;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const auto at = static_cast<std::uint64_t>(t);
    ids.push_back(static_cast<std::int32_t>(random.below(random.below(2, 2 * at) == 0 ? 3 : vocabulary, 2 * at + 1)));
  }
  const Storage id(*device_, DType::i32, {tokens}), dtable(*device_, DType::f32, {vocabulary, channels});
  const Storage dy = normal(DType::bf16, {tokens, channels});
  put(*stream_, id, ids);
  const auto host_dy = get<Bf16>(*stream_, dy);
  std::vector<double> expected(static_cast<std::size_t>(vocabulary * channels));
  for (std::size_t i = 0; i < host_dy.size(); ++i) {
    expected[static_cast<std::size_t>(ids[i / 64]) * 64 + i % 64] +=
        static_cast<double>(static_cast<float>(host_dy[i]));
  }
  std::vector<float> first;
  for (int turn = 0; turn < 2; ++turn) {
    ops::embedding_backward(*stream_, {.ids = id, .dy = dy, .dtable = dtable});
    const auto got = get<float>(*stream_, dtable);
    double worst = 0;
    for (std::size_t i = 0; i < got.size(); ++i) worst = std::max(worst, std::abs(got[i] - expected[i]));
    EXPECT_LT(worst, 1e-3);  // sums of thousands of numbers of order one
    if (turn == 0) first = got;
    EXPECT_EQ(got, first);
  }
}

// Sampled elements against float64; the measured choice survives as text and gives the same bits.
TEST_F(CudaOps, ProductsAtFullSize) {
  const std::int64_t m = 4096, n = 6144, k = 4096;
  for (const DType dtype : {DType::bf16, DType::f32}) {
    const Storage a = normal(dtype, {m, k}), b = normal(dtype, {n, k}), c(*device_, DType::f32, {m, n});
    const ops::Gemm args{.a = a, .b = b, .c = c, .transpose_b = true};
    ops::gemm_prepare(*stream_, args);
    ops::random_normal(*stream_, {.y = a, .seed = 5, .name = 1});
    ops::random_normal(*stream_, {.y = b, .seed = 5, .name = 2});
    ops::gemm(*stream_, args);
    const auto got = get<float>(*stream_, c);
    for (const std::int64_t row : {std::int64_t{0}, m - 1}) {
      std::vector<double> x;
      const auto widen = [&](const TensorView& view) {
        x.clear();
        if (dtype == DType::bf16) {
          for (const Bf16 v : get<Bf16>(*stream_, view)) x.push_back(static_cast<double>(static_cast<float>(v)));
        } else {
          for (const float v : get<float>(*stream_, view)) x.push_back(static_cast<double>(v));
        }
        return x;
      };
      const auto left = widen(a.view().rows(row, 1));
      for (const std::int64_t column : {std::int64_t{0}, std::int64_t{777}, n - 1}) {
        const auto right = widen(b.view().rows(column, 1));
        double sum = 0;
        for (std::size_t i = 0; i < left.size(); ++i) sum += left[i] * right[i];
        // 64 is the size of such a sum. TF32 would be off by more than 1e-2; tensor cores cut bits of bf16's sums.
        const double bound = dtype == DType::bf16 ? 2e-4 : 2e-5;
        EXPECT_NEAR(got[static_cast<std::size_t>(row * n + column)], sum, 64 * bound) << to_string(dtype);
      }
    }
    const std::string text = ops::gemm_choices(*stream_);
    const auto other = make_cuda_device();
    const auto stream = other->make_stream("other");
    EXPECT_GE(ops::gemm_take_choices(*stream, text), 1);
    ops::fill(*stream, {.y = c, .value = 0});
    ops::gemm(*stream, args);
    EXPECT_EQ(get<float>(*stream, c), got);
    EXPECT_EQ(ops::gemm_take_choices(*stream, "another library\n1 2 3\n"), 0);
  }
}

// The loss of logits that are known: x = 0 makes all equal.
TEST_F(CudaOps, LossOfAWholeVocabulary) {
  const std::int64_t tokens = 300, channels = 256, vocabulary = 128256;
  const Storage x(*device_, DType::bf16, {tokens, channels}), labels(*device_, DType::i32, {tokens}),
      scale(*device_, DType::f32, {1}), loss(*device_, DType::f32, {1}), dx(*device_, DType::bf16, {tokens, channels}),
      dweight(*device_, DType::f32, {vocabulary, channels});
  const Storage weight = normal(DType::bf16, {vocabulary, channels}, 0.05);
  const Storage workspace(
      *device_, DType::u8,
      {ops::linear_cross_entropy_workspace(tokens, channels, vocabulary, DType::bf16, 128, DeviceKind::cuda)});
  ops::fill(*stream_, {.y = x, .value = 0});
  ops::fill(*stream_, {.y = labels, .value = 17});
  ops::fill(*stream_, {.y = scale, .value = 1});
  ops::fill(*stream_, {.y = loss, .value = 0});
  ops::fill(*stream_, {.y = dweight, .value = 0});
  ops::linear_cross_entropy(*stream_, {.x = x,
                                       .weight = weight,
                                       .labels = labels,
                                       .scale = scale,
                                       .loss_sum = loss,
                                       .dx = dx,
                                       .dweight = dweight,
                                       .chunk_rows = 128,
                                       .workspace = workspace});
  EXPECT_NEAR(get<float>(*stream_, loss)[0] / static_cast<double>(tokens), std::log(static_cast<double>(vocabulary)),
              1e-5);
  // dx is the mean row of the weight minus the label's.
  const auto row = get<Bf16>(*stream_, weight.view().rows(17, 1)),
             got = get<Bf16>(*stream_, dx.view().rows(tokens - 1, 1));
  for (std::size_t c = 0; c < got.size(); ++c) {
    EXPECT_NEAR(static_cast<float>(got[c]), -static_cast<float>(row[c]), 0.002);
  }
}

}  // namespace
}  // namespace hawser
