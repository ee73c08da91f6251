// Embedding and head against a float64 reference; parameters in the flat buffer of their unit.
#include "nn/blocks/embedding_and_head.h"

#include <gtest/gtest.h>

#include "nn/testing/block_reference.h"

namespace hawser::nn {
namespace embedding_and_head_test {

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
  const LossViews views{ctx.make(DType::f32, {1}, {scale}), ctx.make(DType::f32, {2}, {loss_before, 0})};
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
    RowTarget target(int p) override {
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
    if (softcap > 0) config.softcap = softcap;
    if (sliced) {
      config.vocabulary = columns_;
      config.vocabulary_slice = {.total = kVocabulary};
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
    const LossViews views{ctx_->make(DType::f32, {1}, {kScale}), ctx_->make(DType::f32, {2}, {0.0, 0.0})};
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

// The head with a transform: W and b, and the norm before them, follow the parameters of one without.
struct TransformedHead {
  HeadConfig config = head_config(false);
  std::vector<Vector> w;  // by parameter

  double loss(const Vector& x) const {
    const HeadTransformConfig& transform = *config.transform;
    std::size_t next = config.norm_config.bias ? 3 : 2;
    const Vector &dense = w[next++], bias = transform.bias ? w[next++] : Vector();
    Vector f = x;
    if (transform.norm_config) f = testing::rms_norm(x, w[next], *transform.norm_config);
    Vector h = testing::linear(f, dense, bias, kWidth);
    for (double& value : h) {
      value = transform.activation == Activation::gelu ? value / 2 * std::erfc(-value / std::sqrt(2.0))
                                                       : testing::gelu_tanh(value);
    }
    if (config.norm_config.kind == NormKind::rms) return testing::head_loss(h, w[0], w[1], 1e-5, kLabels);
    const Vector normed = testing::layer_norm(h, w[0], config.norm_config.bias ? w[2] : Vector(), 1e-5);
    return testing::loss_of_logits(testing::linear(normed, w[1], {}, kWidth), kVocabulary, kLabels);
  }
};

TEST(Head, TransformsItsInput) {
  std::vector<HeadConfig> configs(3, head_config(false));
  configs[0].norm_config = {.kind = NormKind::layer, .bias = true};
  configs[0].transform = HeadTransformConfig{.dense = "dense"};
  configs[1].transform = HeadTransformConfig{.dense = "dense",
                                             .bias = false,
                                             .activation = Activation::gelu_tanh,
                                             .norm_config = NormConfig(),
                                             .norm = "first"};
  configs[2].norm_config = {.kind = NormKind::layer};
  configs[2].transform = HeadTransformConfig{.dense = "dense", .norm_config = NormConfig(), .norm = "first"};
  for (const HeadConfig& config : configs) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const auto device = make_cpu_device();
      TestContext ctx(*device, dtype);
      prepare(ctx);
      ctx.weights_.clear();
      ctx.rows_ = {kRows, kRows, 0};
      const HeadLayer head(config);
      TransformedHead reference{config, {}};
      for (const Param& param : head.params()) {
        const bool ones = param.initial.kind == Initial::Kind::ones;
        reference.w.push_back(normals(param.name, param.elements(), ones ? 0.1 : 0.5, ones ? 1.0 : 0.0));
        ctx.weights_.push_back(ctx.make(dtype, param.shape, reference.w.back()));
      }
      const std::string text = cat(&config - configs.data(), " ", to_string(dtype));
      const double scale = 0.125, max = dtype == DType::f32 ? 3e-6 : 2e-2;
      Vector values = normals("x", kRows * kWidth);
      const TensorView x = ctx.make(dtype, {kRows, kWidth}, values), dx = ctx.make(dtype, {kRows, kWidth});
      const TensorView factor = ctx.make(DType::f32, {1}, {scale});
      TestSink fresh(ctx, head.params()), added(ctx, head.params(), true, 1.0);
      for (TestSink* sink : {&fresh, &added}) {
        const TensorView sum = ctx.make(DType::f32, {2}, {0, 0}), alone = ctx.make(DType::f32, {2}, {0, 0});
        head.loss_and_gradient(ctx, x, dx, {factor, sum}, *sink);
        head.loss(ctx, x, {TensorView(), alone});
        ctx.finish();
        EXPECT_NEAR(get(sum)[0], reference.loss(values), max * reference.loss(values)) << text;
        EXPECT_EQ(get(alone), get(sum)) << text;
        for (const int asked : sink->asked()) EXPECT_EQ(asked, 1) << text;
      }
      const auto objective = [&] { return scale * reference.loss(values); };
      EXPECT_LT(distance(get(dx), testing::differences(objective, values)), max) << text;
      for (std::size_t p = 0; p < reference.w.size(); ++p) {
        const std::string where = text + ": " + head.params()[p].name;
        Vector gradient = testing::differences(objective, reference.w[p]);
        EXPECT_LT(distance(get(fresh.views()[p]), gradient), max) << where;
        for (double& value : gradient) value += 1.0;
        EXPECT_LT(distance(get(added.views()[p]), gradient), max) << where;
      }
      // The logits of two rows have the loss of these rows.
      const TensorView logits = ctx.make(DType::f32, {2, kVocabulary}), sum = ctx.make(DType::f32, {2}, {0, 0});
      head.logits(ctx, x.rows(2, 2), logits);
      ctx.batch_.labels = ctx.make(DType::i32, {2}, {0, 12});
      ctx.rows_ = {2, 2, 0};
      head.loss(ctx, x.rows(2, 2), {TensorView(), sum});
      ctx.finish();
      const double of_rows = testing::loss_of_logits(get(logits), kVocabulary, {0, 12});
      EXPECT_NEAR(get(sum)[0], of_rows, max * of_rows) << text;
      EXPECT_EQ(head.flops({5, 10, 0}), 2.0 * 5 * (kWidth * kVocabulary + kWidth * kWidth));
    }
  }
}

const std::vector<int> kIds{4, 0, 4, 12, 7, 4, 1, 0, 11}, kPositions{0, 1, 2, 3, 0, 1, 0, 1, 2},
    kTypes{0, 0, 2, 2, 1, 0, 0, 1, 0};
constexpr std::int64_t kOffset = 2;  // EmbeddingConfig::position_offset

// Tables of tokens, positions and types, then weight and bias of the norm; all but the first may be absent.
Vector embedded(const EmbeddingConfig& config, const std::vector<Vector>& w) {
  Vector s;
  for (std::size_t t = 0; t < kRows; ++t) {
    for (std::size_t c = 0; c < kWidth; ++c) {
      std::size_t next = 1;
      double sum = w[0][static_cast<std::size_t>(kIds[t]) * kWidth + c];
      const auto row = static_cast<std::size_t>(kPositions[t] + config.position_offset);
      if (!config.positions.empty()) sum += w[next++][row * kWidth + c];
      const auto type = static_cast<std::size_t>(config.type_count > 1 ? kTypes[t] : 0);
      if (!config.types.empty()) sum += w[next++][type * kWidth + c];
      s.push_back(config.scale * sum);
    }
  }
  if (!config.norm_config) return s;
  const bool bias = config.norm_config->bias;
  const Vector& norm = w[w.size() - (bias ? 2 : 1)];
  if (config.norm_config->kind == NormKind::rms) return testing::rms_norm(s, norm, *config.norm_config);
  return testing::layer_norm(s, norm, bias ? w.back() : Vector(), config.norm_config->epsilon);
}

void set_embedding_batch(TestContext& ctx) {
  ctx.rows_ = {kRows, kRows, 0};
  ctx.batch_.ids = ctx.make(DType::i32, {kRows}, Vector(kIds.begin(), kIds.end()));
  ctx.batch_.positions = ctx.make(DType::i32, {kRows}, Vector(kPositions.begin(), kPositions.end()));
  ctx.batch_.tables[kTokenTypes.name] = ctx.make(DType::i32, {kRows}, Vector(kTypes.begin(), kTypes.end()));
}

TEST(Embedding, AddsPositionsAndTypesAndNormsTheSum) {
  const NormConfig layer{.kind = NormKind::layer, .bias = true};
  EmbeddingConfig plain{.vocabulary = kVocabulary, .width = kWidth, .table = "table"};
  plain.max_position = 7, plain.type_count = 3, plain.norm = "norm";
  std::vector<EmbeddingConfig> configs(5, plain);
  configs[0].positions = "positions", configs[0].position_offset = kOffset, configs[0].scale = 2.5;
  configs[1].types = "types", configs[1].norm_config = NormConfig{.unit_offset = true}, configs[1].scale = 0.5;
  configs[2] = configs[0], configs[2].types = "types", configs[2].norm_config = layer;
  configs[3] = configs[2], configs[3].type_count = 1, configs[3].position_offset = 0;
  configs[4].norm_config = NormConfig{.kind = NormKind::layer};
  for (const EmbeddingConfig& config : configs) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const auto device = make_cpu_device();
      TestContext ctx(*device, dtype);
      const EmbeddingLayer embedding(config);
      std::vector<Vector> w;
      for (const Param& param : embedding.params()) {
        w.push_back(normals(param.name, param.elements(), 1.0, param.shape.rank() == 1 ? 1.0 : 0.0));
        ctx.weights_.push_back(ctx.make(dtype, param.shape, w.back()));
      }
      set_embedding_batch(ctx);
      const std::string text = cat(&config - configs.data(), " ", to_string(dtype));
      const double max = dtype == DType::f32 ? 3e-6 : 2e-2;
      const TensorView y = ctx.make(dtype, {kRows, kWidth});
      embedding.forward(ctx, y);
      ctx.finish();
      EXPECT_LT(distance(get(y), embedded(config, w)), max) << text;
      const Vector dy = normals("dy", kRows * kWidth);
      TestSink fresh(ctx, embedding.params()), added(ctx, embedding.params(), true, 1.0);
      for (TestSink* sink : {&fresh, &added}) {
        embedding.backward(ctx, ctx.make(dtype, {kRows, kWidth}, dy), *sink);
      }
      ctx.finish();
      for (std::size_t p = 0; p < w.size(); ++p) {
        Vector gradient = testing::differences([&] { return testing::dot(dy, embedded(config, w)); }, w[p]);
        EXPECT_LT(distance(get(fresh.views()[p]), gradient), max) << text << ": " << embedding.params()[p].name;
        for (double& value : gradient) value += 1.0;
        EXPECT_LT(distance(get(added.views()[p]), gradient), max) << text << ": " << embedding.params()[p].name;
      }
      for (int none = 0; none < static_cast<int>(w.size()); ++none) {
        TestSink without(ctx, embedding.params());
        without.reject(none);
        embedding.backward(ctx, ctx.make(dtype, {kRows, kWidth}, dy), without);
        ctx.finish();
        for (std::size_t p = 0; p < w.size(); ++p) {
          if (static_cast<int>(p) == none) continue;
          EXPECT_EQ(get(without.views()[p]), get(fresh.views()[p])) << text;
        }
      }
    }
  }
}

// With an offset, the last position is max_position - offset - 1.
TEST(Embedding, RejectsPositionsAndTypesOutsideTheirTables) {
  const EmbeddingConfig config{.vocabulary = kVocabulary,
                               .width = kWidth,
                               .table = "table",
                               .positions = "positions",
                               .max_position = 6,
                               .position_offset = kOffset,
                               .types = "types",
                               .type_count = 3};
  const auto throws = [&](int position, int type) {
    const auto device = make_cpu_device();
    TestContext ctx(*device, DType::f32);
    const EmbeddingLayer embedding(config);
    for (const Param& param : embedding.params()) {
      ctx.weights_.push_back(ctx.make(DType::f32, param.shape, normals(param.name, param.elements())));
    }
    set_embedding_batch(ctx);
    testing::set(ctx.batch_.positions.rows(3, 1), {static_cast<double>(position)});
    testing::set(ctx.batch_.tables[kTokenTypes.name].rows(3, 1), {static_cast<double>(type)});
    embedding.forward(ctx, ctx.make(DType::f32, {kRows, kWidth}));
    try {
      ctx.finish();
    } catch (const InternalError&) {
      return true;
    }
    return false;
  };
  EXPECT_FALSE(throws(3, 2));
  EXPECT_TRUE(throws(4, 2));
  EXPECT_TRUE(throws(3, 3));
  EmbeddingConfig no_rows = config;
  no_rows.position_offset = 6;
  EXPECT_THROW(EmbeddingLayer{no_rows}, InternalError);
}

}  // namespace embedding_and_head_test
}  // namespace hawser::nn
