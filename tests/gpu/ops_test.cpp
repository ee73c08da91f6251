// Ops at the sizes of a real model, which the case tables do not reach.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/philox.h"
#include "ops/activation/gated.h"
#include "ops/attention/attention.h"
#include "ops/copy/copy.h"
#include "ops/embedding/embedding.h"
#include "ops/gemm/gemm.h"
#include "ops/loss/linear_cross_entropy.h"
#include "ops/reduce/sum_squares.h"
#include "ops/seed/init.h"
#include "support.h"

namespace hawser {
namespace ops_test {

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

// More than 2^31 elements: the last ones must be written, and nothing else.
TEST_F(CudaOps, IndicesPass32Bits) {
  const std::int64_t rows = 80000, hidden = 14336;  // 2.3e9 elements of gate and up
  const Storage gate_up(*device_, DType::bf16, {rows, 2 * hidden}), y(*device_, DType::bf16, {rows, hidden});
  ops::fill(*stream_, {.y = gate_up, .value = 1});
  ops::fill(*stream_, {.y = gate_up.view().rows(rows - 1, 1), .value = 2});
  ops::gated_forward(*stream_, {.gate_up = gate_up, .y = y});
  const auto last = get<Bf16>(*stream_, y.view().rows(rows - 1, 1)),
             before = get<Bf16>(*stream_, y.view().rows(rows - 2, 1));
  EXPECT_NEAR(static_cast<float>(last.back()), 4 / (1 + std::exp(-2.0)), 0.02);
  EXPECT_NEAR(static_cast<float>(before.back()), 1 / (1 + std::exp(-1.0)), 0.004);
  const Storage out(*device_, DType::f32, {1});
  ops::sum_squares(*stream_, {.x = gate_up, .out = out});
  const double expected = 2.0 * static_cast<double>(hidden) * static_cast<double>(rows + 3);
  EXPECT_NEAR(get<float>(*stream_, out)[0] / expected, 1, 1e-6);
}

TEST_F(CudaOps, EmbeddingGradientOfAFullVocabulary) {
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

// NaN and infinities reach the loss and both gradients, as on the CPU. A NaN in a row without a target does not affect
// other rows.
TEST_F(CudaOps, NonFiniteValuesReachTheLoss) {
  constexpr std::int64_t kRows = 40, kWidth = 64, kVocabulary = 3000;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
  struct Result {
    float loss;
    std::vector<float> dx;
  };
  const auto on = [&](Device& device, DType dtype, std::int64_t row, float value) {
    const auto stream = device.make_stream("loss");
    const RandomStream random(3, "loss");
    const auto numbers = [&](std::int64_t count) {
      std::vector<float> out;
      for (std::int64_t i = 0; i < count; ++i) {
        out.push_back(static_cast<float>(Bf16(static_cast<float>(random.normal(static_cast<std::uint64_t>(i))))));
      }
      return out;
    };
    const auto upload = [&](const TensorView& view, const std::vector<float>& values) {
      if (view.dtype() == DType::f32) return put(*stream, view, values);
      put(*stream, view, std::vector<Bf16>(values.begin(), values.end()));
    };
    const Storage x(device, dtype, {kRows, kWidth}), weight(device, dtype, {kVocabulary, kWidth});
    const Storage dx(device, DType::f32, {kRows, kWidth}), dweight(device, DType::f32, {kVocabulary, kWidth});
    const Storage labels(device, DType::i32, {kRows}), scale(device, DType::f32, {1}), loss(device, DType::f32, {2});
    auto values = numbers(kRows * kWidth);
    if (row >= 0) values[static_cast<std::size_t>(row * kWidth + 5)] = value;
    upload(x, values);
    upload(weight, numbers(kVocabulary * kWidth));
    std::vector<std::int32_t> targets;
    for (int t = 0; t < kRows; ++t) targets.push_back(t % 8 == 3 ? -100 : 71 * t);  // rows 3, 11, ... have none
    put(*stream, labels, targets);
    put<float>(*stream, scale, {0.01f});
    ops::fill(*stream, {.y = loss});
    ops::LinearCrossEntropy call{
        .x = x, .weight = weight, .labels = labels, .scale = scale, .loss_sum = loss, .dx = dx, .dweight = dweight};
    const Storage workspace(device, DType::u8,
                            {std::max<std::int64_t>(ops::linear_cross_entropy_workspace(call, stream->target()), 1)});
    call.workspace = workspace;
    ops::linear_cross_entropy(*stream, call);
    return Result{get<float>(*stream, loss)[0], get<float>(*stream, dx)};
  };
  const auto cpu = make_cpu_device();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const float value : {kNan, kInf, -kInf}) {
      const Result spoilt = on(*device_, dtype, 9, value), same = on(*cpu, dtype, 9, value);
      EXPECT_TRUE(std::isnan(same.loss)) << value;
      EXPECT_TRUE(std::isnan(spoilt.loss)) << value << " in " << to_string(dtype) << ": " << spoilt.loss;
      for (std::int64_t t = 0; t < kRows; ++t) {
        const auto at = static_cast<std::size_t>(t * kWidth);
        EXPECT_EQ(std::isnan(spoilt.dx[at]), t == 9) << "row " << t;
      }
    }
    EXPECT_TRUE(std::isfinite(on(*device_, dtype, -1, 0).loss));
    EXPECT_EQ(std::isfinite(on(*device_, dtype, 11, kNan).loss), std::isfinite(on(*cpu, dtype, 11, kNan).loss));
  }
}

// The stream reports a segment table with invalid rows and the row's index. Nothing outside the tensors may be written:
// guard rows before and after them are checked.
TEST_F(CudaOps, InvalidSegmentTablesAreReportedAndWriteNothing) {
  constexpr std::int64_t kRows = 64, kGuard = 64, kHeads = 4, kKvHeads = 2, kDim = 32, kTable = 3;
  constexpr std::int32_t kMax = std::numeric_limits<std::int32_t>::max();
  struct Broken {
    std::vector<std::int32_t> row;  // the second of three in the table
    std::int32_t count;
    const char* what;
  };
  const std::vector<Broken> tables = {
      {{-1, 16, 16, 16, 0, 0}, 3, "attention: first row or number of rows -1 at 1 is outside [0, 65)"},
      {{16, 49, 16, 16, 0, 0}, 3, "attention: first row or number of rows 49 at 1 is outside [0, 49)"},
      {{16, 16, 16, -3, 0, 0}, 3, "attention: first row or number of rows -3 at 1 is outside [0, 49)"},
      {{16, 16, 60, 16, 0, 0}, 3, "attention: first row or number of rows 16 at 1 is outside [0, 5)"},
      {{kMax, kMax, 16, 16, 0, 0}, 3, "attention: first row or number of rows 2147483647 at 1 is outside [0, 65)"},
      {{16, 16, 16, 16, 0, 0}, 4, "attention: number of segments 4 at 0 is outside [0, 4)"},
      {{16, 16, 16, 16, 0, 0}, -1, "attention: number of segments -1 at 0 is outside [0, 4)"},
  };
  struct Way {
    DType dtype;
    ops::SegmentForm form;
    std::vector<ops::StridedBlocks> blocks;
    bool causal;
    const char* name;  // of backward's kernel
  };
  for (const Way& way : {Way{DType::f32, ops::SegmentForm::any, {}, true, "plain"},
                         Way{DType::bf16, ops::SegmentForm::diagonal, {}, true, "cudnn ragged"},
                         Way{DType::bf16, ops::SegmentForm::any, {}, false, "cudnn ragged, shared keys"},
                         Way{DType::bf16,
                             ops::SegmentForm::diagonal,
                             {ops::equal_diagonal_blocks(kRows, kRows)},
                             true,
                             "cudnn dense"}}) {
    for (const Broken& broken : tables) {
      SCOPED_TRACE(cat(way.name, ": ", broken.what));
      // Rows of a tensor between guards of 1.5.
      std::vector<Storage> kept;
      const auto guarded = [&](std::int64_t heads) {
        kept.emplace_back(*device_, way.dtype, Shape{kRows + 2 * kGuard, heads, kDim});
        ops::fill(*stream_, {.y = kept.back(), .value = 1.5f});
        return kept.back().view().rows(kGuard, kRows);
      };
      const TensorView q = guarded(kHeads), k = guarded(kKvHeads), v = guarded(kKvHeads), o = guarded(kHeads),
                       d_o = guarded(kHeads), dq = guarded(kHeads), dk = guarded(kKvHeads), dv = guarded(kKvHeads);
      const Storage lse(*device_, DType::f32, {kHeads, kRows});
      ops::fill(*stream_, {.y = lse, .value = 1.0f});
      const Storage table(*device_, DType::i32, {kTable, 6}), count(*device_, DType::i32, {1});
      std::vector<std::int32_t> numbers{0, 16, 0, 16, 0, 0};
      numbers.insert(numbers.end(), broken.row.begin(), broken.row.end());
      numbers.insert(numbers.end(), {48, 16, 48, 16, 0, 0});  // its offsets do not depend on the invalid segment
      put(*stream_, table, numbers);
      put<std::int32_t>(*stream_, count, {broken.count});
      ops::AttentionCall forward{.q = q,
                                 .k = k,
                                 .v = v,
                                 .segments = table,
                                 .segment_count = count,
                                 .form = way.form,
                                 .blocks = way.blocks,
                                 .causal = way.causal,
                                 .o = o,
                                 .lse = lse};
      ops::AttentionBackward backward{.call = forward, .d_o = d_o, .dq = dq, .dk = dk, .dv = dv};
      EXPECT_STREQ(ops::attention_implementation(backward, DeviceKind::cuda).name(), way.name);
      const Storage workspace(*device_, DType::u8,
                              {std::max<std::int64_t>({ops::attention_workspace(forward, DeviceKind::cuda),
                                                       ops::attention_workspace(backward, DeviceKind::cuda), 1})});
      forward.workspace = backward.call.workspace = workspace;
      for (const bool back : {false, true}) {
        const auto own = device_->make_stream("broken");
        if (back) {
          ops::attention_backward(*own, backward);
        } else {
          ops::attention_forward(*own, forward);
        }
        try {
          own->synchronize();
          ADD_FAILURE() << "not reported" << (back ? " in backward" : "");
        } catch (const InternalError& error) {
          EXPECT_NE(std::string(error.what()).find(broken.what), std::string::npos) << error.what();
        }
      }
      for (const Storage& full : kept) {
        for (const std::int64_t begin : {std::int64_t{0}, kGuard + kRows}) {
          const TensorView guard = full.view().rows(begin, kGuard);
          const Storage wide(*device_, DType::f32, guard.shape());
          if (way.dtype == DType::f32) {
            ops::copy(*stream_, {.x = guard, .y = wide});
          } else {
            ops::cast(*stream_, {.x = guard, .y = wide});
          }
          for (const float x : get<float>(*stream_, wide)) ASSERT_EQ(x, 1.5f);
        }
      }
    }
  }
}

// Compares sampled elements with float64. The measured choice, restored from text, gives the same bits.
TEST_F(CudaOps, GemmsAtFullSize) {
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
        // 64 is the magnitude of such a sum. TF32 would err by more than 1e-2; tensor cores truncate bf16 sums.
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
    // Words that are no algorithm of the library, after the right heading.
    const std::string damaged =
        text.substr(0, text.find('\n') + 1) + "512 512 512 512 512 512 0 0 0 0 0 0 1 ffff ffff 0 0 0 0 0 0\n";
    EXPECT_EQ(ops::gemm_take_choices(*stream, damaged), 0);
    EXPECT_EQ(ops::gemm_take_choices(*stream, "another library\n1 2 3\n"), 0);
  }
}

// The loss of known logits: x = 0 makes them all equal.
TEST_F(CudaOps, LossOfAFullVocabulary) {
  const std::int64_t tokens = 300, channels = 256, vocabulary = 128256;
  const Storage x(*device_, DType::bf16, {tokens, channels}), labels(*device_, DType::i32, {tokens}),
      scale(*device_, DType::f32, {1}), loss(*device_, DType::f32, {2}), dx(*device_, DType::bf16, {tokens, channels}),
      dweight(*device_, DType::f32, {vocabulary, channels});
  const Storage weight = normal(DType::bf16, {vocabulary, channels}, 0.05);
  ops::fill(*stream_, {.y = x, .value = 0});
  ops::fill(*stream_, {.y = labels, .value = 17});
  ops::fill(*stream_, {.y = scale, .value = 1});
  ops::fill(*stream_, {.y = loss, .value = 0});
  ops::fill(*stream_, {.y = dweight, .value = 0});
  ops::LinearCrossEntropy call{.x = x,
                               .weight = weight,
                               .labels = labels,
                               .scale = scale,
                               .loss_sum = loss,
                               .dx = dx,
                               .dweight = dweight,
                               .chunk_rows = 128};
  const Storage workspace(*device_, DType::u8, {ops::linear_cross_entropy_workspace(call, DeviceKind::cuda)});
  call.workspace = workspace;
  ops::linear_cross_entropy(*stream_, call);
  EXPECT_NEAR(get<float>(*stream_, loss)[0] / static_cast<double>(tokens), std::log(static_cast<double>(vocabulary)),
              1e-5);
  // dx is the mean row of the weight minus the label's.
  const auto row = get<Bf16>(*stream_, weight.view().rows(17, 1)),
             got = get<Bf16>(*stream_, dx.view().rows(tokens - 1, 1));
  for (std::size_t c = 0; c < got.size(); ++c) {
    EXPECT_NEAR(static_cast<float>(got[c]), -static_cast<float>(row[c]), 0.002);
  }
}

}  // namespace ops_test
}  // namespace hawser
