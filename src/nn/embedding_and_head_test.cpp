// Embedding and head against a float64 reference; parameters in the flat buffer of their unit.
#include "nn/blocks/embedding_and_head.h"

#include <gtest/gtest.h>

#include "nn/testing/block_reference.h"

namespace hawser::nn {
namespace {

using testing::distance;
using testing::get;
using testing::normals;
using testing::TestContext;
using testing::TestSink;
using testing::Vector;

constexpr std::int64_t kRows = 9, kWidth = 10, kVocabulary = 13;
const std::vector<int> kLabels{3, -100, 0, 12, 5, -1, 5, 7, 3};

struct HeadResult {
  double loss = 0;
  Vector dx, dnorm, dtable;
};

HeadConfig head_config(bool tied) {
  return {.vocabulary = kVocabulary, .width = kWidth, .tied = tied, .norm = "norm", .output = "lm_head"};
}

void prepare(TestContext& ctx) {
  ctx.weights_ = {ctx.make(ctx.dtype(), {kWidth}, normals("norm", kWidth, 0.1, 1.0)),
                  ctx.make(ctx.dtype(), {kVocabulary, kWidth}, normals("table", kVocabulary * kWidth, 0.5))};
  ctx.batch_.labels = ctx.make(DType::i32, {kRows}, Vector(kLabels.begin(), kLabels.end()));
}

HeadResult run_head(DType dtype, bool tied, double scale, double loss_before, bool accumulate) {
  const auto device = make_cpu_device();
  TestContext ctx(*device, dtype);
  prepare(ctx);
  const HeadLayer head(head_config(tied), "table");
  EXPECT_EQ(head.params().size(), 2u);
  EXPECT_EQ(head.params()[1].name, tied ? "table.weight" : "lm_head.weight");
  EXPECT_EQ(head.params()[1].shared, tied);
  TestSink sink(ctx, head.params(), accumulate, 1.0);
  const TensorView x = ctx.make(dtype, {kRows, kWidth}, normals("x", kRows * kWidth));
  const TensorView dx = ctx.make(dtype, {kRows, kWidth});
  const HeadLayer::LossViews views{ctx.make(DType::f32, {1}, {scale}), ctx.make(DType::f32, {2}, {loss_before, 0})};
  head.loss_and_gradient(ctx, x, dx, views, sink);
  ctx.finish();
  EXPECT_EQ(sink.asked(), (std::vector<int>{1, 1}));
  return {get(views.sum)[0], get(dx), get(sink.views()[0]), get(sink.views()[1])};
}

TEST(Head, LossAndGradientsEqualTheReference) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const bool tied : {false, true}) {
      Vector x = normals("x", kRows * kWidth), norm = normals("norm", kWidth, 0.1, 1.0);
      Vector table = normals("table", kVocabulary * kWidth, 0.5);
      const double scale = 0.125, max = dtype == DType::f32 ? 3e-6 : 2e-2;
      const auto loss = [&] { return testing::head_loss(x, norm, table, 1e-5, kLabels); };
      const auto objective = [&] { return scale * loss(); };
      const HeadResult got = run_head(dtype, tied, scale, 2.5, false);
      EXPECT_NEAR(got.loss, 2.5 + loss(), max * loss());
      EXPECT_LT(distance(got.dx, testing::differences(objective, x)), max);
      EXPECT_LT(distance(got.dnorm, testing::differences(objective, norm)), max);
      const Vector dtable = testing::differences(objective, table);
      EXPECT_LT(distance(got.dtable, dtable), max);
      // A tied table's gradient is added to the embedding's.
      Vector added = dtable;
      for (double& value : added) value += 1.0;
      EXPECT_LT(distance(run_head(dtype, tied, scale, 0, true).dtable, added), max);
    }
  }
}

TEST(Head, LossWithoutGradientIsEqualAndLogitsEqualTheReference) {
  const auto device = make_cpu_device();
  TestContext ctx(*device, DType::f32);
  prepare(ctx);
  const HeadLayer head(head_config(false));
  const TensorView x = ctx.make(DType::f32, {kRows, kWidth}, normals("x", kRows * kWidth));
  const TensorView sum = ctx.make(DType::f32, {2}, {0.0, 0.0}), logits = ctx.make(DType::f32, {kRows, kVocabulary});
  head.loss(ctx, x, {TensorView(), sum});
  head.logits(ctx, x, logits);
  ctx.finish();
  EXPECT_EQ(get(sum)[0], run_head(DType::f32, false, 1.0, 0.0, false).loss);
  const Vector h = testing::rms_norm(get(x), get(ctx.weights_[0]), 1e-5);
  EXPECT_LT(distance(get(logits), testing::linear(h, get(ctx.weights_[1]), {}, kWidth)), 1e-6);
}

// The seams of a rank whose rows come in two pieces.
class TwoPieces : public Redistribute {
 public:
  std::unique_ptr<Sum> sum(LayerContext&, const TensorView& y, const TensorView&, Order) override {
    return std::make_unique<Pieces>(y);
  }

 private:
  struct Pieces : Sum {
    explicit Pieces(const TensorView& all) : y(all) {}
    int pieces() const override { return 2; }
    RowPiece target(int p) override {
      const std::int64_t first = p == 0 ? 0 : 4, rows = p == 0 ? 4 : y.size(0) - 4;
      return {y.rows(first, rows), first};
    }
    void written(int) override {}
    void finish() override {}
    TensorView y;
  };
};

// A head with a bias, or a cap that logits are near to, or both; of a complete vocabulary, and of one that is sliced
// with three columns of padding, whose weights and biases are the largest. dtype: of activations and gradients.
class CappedHead {
 public:
  CappedHead(DType dtype, bool bias, double softcap, bool sliced)
      : dtype_(dtype), columns_(sliced ? kVocabulary + 3 : kVocabulary), device_(make_cpu_device()) {
    HeadConfig config = head_config(true);
    config.bias = bias;
    config.softcap = softcap;
    if (sliced) {
      config.vocabulary = columns_;
      config.vocabulary_part = {.total = kVocabulary};
    }
    head_ = std::make_unique<HeadLayer>(config, "table");
    ctx_ = std::make_unique<TestContext>(*device_, dtype);
    prepare(*ctx_);
    ctx_->seams_.redistribute = std::make_shared<TwoPieces>();
    Vector table = get(ctx_->weights_[1]), biases = bias_values();
    table.resize(static_cast<std::size_t>(columns_ * kWidth), 9.0);
    biases.resize(static_cast<std::size_t>(columns_), 50.0);
    ctx_->weights_[1] = ctx_->make(dtype, {columns_, kWidth}, table);
    if (bias) ctx_->weights_.push_back(ctx_->make(dtype, {columns_}, biases));
  }

  static Vector bias_values() { return normals("bias", kVocabulary, 1.5); }
  static constexpr double kScale = 0.125, kStart = 1;

  TensorView x() { return ctx_->make(dtype_, {kRows, kWidth}, normals("x", kRows * kWidth)); }
  TestSink sink(bool accumulate) { return {*ctx_, head_->params(), accumulate, kStart, dtype_}; }
  // Of the loss; dx and the gradients that the sink wants, without padding, which must be as it was.
  double gradient(TestSink& sink, bool accumulate, Vector& dx, std::vector<Vector>& gradients) {
    const TensorView to = ctx_->make(dtype_, {kRows, kWidth});
    const HeadLayer::LossViews views{ctx_->make(DType::f32, {1}, {kScale}), ctx_->make(DType::f32, {2}, {0.0, 0.0})};
    head_->loss_and_gradient(*ctx_, x(), to, views, sink);
    ctx_->finish();
    EXPECT_EQ(sink.asked(), std::vector<int>(head_->params().size(), 1));
    dx = get(to);
    gradients.clear();
    for (const TensorView& view : sink.views()) {
      Vector values = view.empty() ? Vector() : get(view);
      const std::size_t real = values.size() / static_cast<std::size_t>(columns_) * kVocabulary;
      for (std::size_t i = real; gradients.size() > 0 && i < values.size(); ++i) {
        EXPECT_EQ(values[i], accumulate ? kStart : 0) << "padding";
      }
      if (gradients.size() > 0) values.resize(real);
      gradients.push_back(std::move(values));
    }
    return get(views.sum)[0];
  }
  double loss() {
    const TensorView sum = ctx_->make(DType::f32, {2}, {0.0, 0.0});
    head_->loss(*ctx_, x(), {TensorView(), sum});
    ctx_->finish();
    return get(sum)[0];
  }
  Vector logits() {
    const TensorView logits = ctx_->make(DType::f32, {kRows, kVocabulary});
    head_->logits(*ctx_, x(), logits);
    ctx_->finish();
    return get(logits);
  }
  const std::vector<Param>& params() const { return head_->params(); }

 private:
  DType dtype_;
  std::int64_t columns_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<TestContext> ctx_;
  std::unique_ptr<HeadLayer> head_;
};

TEST(Head, BiasAndSoftcapEqualTheReference) {
  for (const auto& [bias, softcap] : {std::pair{true, 0.0}, {false, 1.5}, {true, 1.5}}) {
    Vector x = normals("x", kRows * kWidth), norm = normals("norm", kWidth, 0.1, 1.0);
    Vector table = normals("table", kVocabulary * kWidth, 0.5), b = bias ? CappedHead::bias_values() : Vector();
    const double cap = softcap;
    const auto loss = [&] { return testing::head_loss(x, norm, table, 1e-5, kLabels, b, cap); };
    const auto objective = [&] { return CappedHead::kScale * loss(); };
    std::vector<Vector> expected{testing::differences(objective, norm), testing::differences(objective, table)};
    if (bias) expected.push_back(testing::differences(objective, b));
    const Vector expected_dx = testing::differences(objective, x);
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const bool sliced : {false, true}) {
        const double max = dtype == DType::f32 ? 5e-6 : 2e-2;
        CappedHead head(dtype, bias, softcap, sliced);
        Vector dx;
        std::vector<Vector> got;
        for (const bool accumulate : {false, true}) {
          TestSink sink = head.sink(accumulate);
          EXPECT_NEAR(head.gradient(sink, accumulate, dx, got), loss(), max * loss());
          EXPECT_LT(distance(dx, expected_dx), max);
          ASSERT_EQ(got.size(), expected.size());
          for (std::size_t p = 0; p < expected.size(); ++p) {
            Vector gradient = expected[p];
            for (double& value : gradient) value += accumulate ? CappedHead::kStart : 0;
            EXPECT_LT(distance(got[p], gradient), max) << p;
          }
        }
        EXPECT_NEAR(head.loss(), loss(), max * loss());
        EXPECT_LT(distance(head.logits(), testing::head_logits(x, norm, table, 1e-5, b, cap)), max);
      }
    }
  }
}

// The bias is the head's own parameter, although its weight is the embedding's; each of them can be frozen.
TEST(Head, ABiasTrainsWithoutTheWeightAndTheWeightWithoutIt) {
  for (const bool sliced : {false, true}) {
    CappedHead head(DType::f32, true, 1.5, sliced);
    const Param& bias = head.params().at(2);
    EXPECT_EQ(bias.name, "lm_head.bias");
    EXPECT_FALSE(bias.shared);
    EXPECT_FALSE(bias.decay);
    EXPECT_EQ(bias.initial.kind, Initial::Kind::zeros);
    EXPECT_EQ(bias.padding, sliced ? 3 : 0);
    EXPECT_EQ(bias.of_residual_rows, !sliced);
    EXPECT_EQ(bias.flat.domain, sliced ? Domain::sliced : Domain::replicated);
    Vector dx;
    std::vector<Vector> all, got;
    TestSink both = head.sink(false);
    head.gradient(both, false, dx, all);
    for (const int frozen : {1, 2}) {
      TestSink sink = head.sink(false);
      sink.reject(frozen);
      head.gradient(sink, false, dx, got);
      EXPECT_EQ(got[static_cast<std::size_t>(3 - frozen)], all[static_cast<std::size_t>(3 - frozen)]);
    }
  }
}

TEST(Embedding, LooksUpAndAddsUp) {
  const std::vector<int> ids{4, 0, 4, 12, 7, 4, 1, 0, 11};
  for (const auto& [dtype, scale] : {std::pair{DType::f32, 1.0}, {DType::bf16, 1.0}, {DType::f32, 2.5}}) {
    const auto device = make_cpu_device();
    TestContext ctx(*device, dtype);
    const EmbeddingLayer embedding({.vocabulary = kVocabulary, .width = kWidth, .table = "table", .scale = scale});
    const Vector table = normals("table", kVocabulary * kWidth), dy = normals("dy", kRows * kWidth);
    ctx.weights_ = {ctx.make(dtype, {kVocabulary, kWidth}, table)};
    ctx.batch_.ids = ctx.make(DType::i32, {kRows}, Vector(ids.begin(), ids.end()));
    const TensorView y = ctx.make(dtype, {kRows, kWidth});
    embedding.forward(ctx, y);
    TestSink fresh(ctx, embedding.params()), added(ctx, embedding.params(), true, 1.0), none(ctx, embedding.params());
    none.reject(0);
    for (TestSink* sink : {&fresh, &added, &none}) {
      embedding.backward(ctx, ctx.make(dtype, {kRows, kWidth}, dy), *sink);
    }
    ctx.finish();
    Vector expected_y, gradient(table.size(), 0.0);
    for (std::size_t t = 0; t < ids.size(); ++t) {
      for (std::size_t c = 0; c < kWidth; ++c) {
        const std::size_t at = static_cast<std::size_t>(ids[t]) * kWidth + c;
        expected_y.push_back(static_cast<double>(static_cast<float>(scale * table[at])));
        gradient[at] += scale * dy[t * kWidth + c];
      }
    }
    EXPECT_EQ(get(y), expected_y);
    EXPECT_LT(distance(get(fresh.views()[0]), gradient), 1e-6);
    for (double& value : gradient) value += 1.0;
    EXPECT_LT(distance(get(added.views()[0]), gradient), 1e-6);
  }
}

}  // namespace
}  // namespace hawser::nn
