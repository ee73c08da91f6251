// Heads of classes and of masked tokens, with and without a norm, a pooler and a bias, against a float64 reference.
#include <gtest/gtest.h>

#include "nn/blocks/embedding_and_head.h"
#include "nn/testing/block_reference.h"

namespace hawser::nn {
namespace heads_test {

using testing::distance;
using testing::get;
using testing::normals;
using testing::TestContext;
using testing::TestSink;
using testing::Vector;

constexpr std::int64_t kRows = 7, kWidth = 10, kClasses = 4;
const std::vector<int> kLabels{-100, 3, -100, -100, 0, -100, 2};

struct Reference {
  HeadConfig config;
  std::vector<Vector> w;  // by parameter

  double loss(const Vector& x) const {
    std::size_t next = 0;
    const Vector norm = config.norm.empty() ? Vector() : w[next++];
    const Vector& projection = w[next++];
    Vector h = x;
    if (config.transform) {
      h = testing::linear(h, w[next], w[next + 1], kWidth);
      next += 2;
      for (double& value : h) value = std::tanh(value);
    }
    if (!norm.empty()) h = testing::rms_norm(h, norm, config.norm_config);
    const Vector logits = testing::linear(h, projection, config.bias ? w[next] : Vector(), kWidth);
    return testing::loss_of_logits(logits, config.columns(), kLabels);
  }
};

TEST(Head, ClassesEqualTheReference) {
  std::vector<HeadConfig> configs(4, {.width = kWidth, .output = "classifier", .classes = kClasses, .bias = true});
  configs[0].kind = HeadKind::token_classification;
  configs[1].kind = configs[2].kind = HeadKind::sequence_classification;
  configs[1].transform = HeadTransformConfig{.dense = "pooler", .activation = Activation::tanh};
  configs[2].norm = "norm";
  configs[2].bias = false;
  configs[3].kind = HeadKind::masked_language_model;
  configs[3].vocabulary = 13;
  configs[3].norm = "norm";
  configs[3].transform = HeadTransformConfig{.dense = "pooler", .activation = Activation::tanh};
  for (const HeadConfig& config : configs) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const auto device = make_cpu_device();
      TestContext ctx(*device, dtype);
      ctx.rows_ = {kRows, kRows, 0};
      ctx.batch_.labels = ctx.make(DType::i32, {kRows}, Vector(kLabels.begin(), kLabels.end()));
      const HeadLayer head(config);
      Reference reference{config, {}};
      for (const Param& param : head.params()) {
        const bool ones = param.initial.kind == Initial::Kind::ones;
        reference.w.push_back(normals(param.name, param.elements(), ones ? 0.1 : 0.5, ones ? 1.0 : 0.0));
        ctx.weights_.push_back(ctx.make(dtype, param.shape, reference.w.back()));
      }
      const std::string text = cat(&config - configs.data(), " ", to_string(dtype));
      const double scale = 0.125, max = dtype == DType::f32 ? 3e-6 : 2e-2;
      Vector values = normals("x", kRows * kWidth);
      const TensorView x = ctx.make(dtype, {kRows, kWidth}, values), dx = ctx.make(dtype, {kRows, kWidth});
      const TensorView sum = ctx.make(DType::f32, {2}, {0, 0}), alone = ctx.make(DType::f32, {2}, {0, 0});
      TestSink sink(ctx, head.params());
      head.loss_and_gradient(ctx, x, dx, {ctx.make(DType::f32, {1}, {scale}), sum}, sink);
      head.loss(ctx, x, {TensorView(), alone});
      ctx.finish();
      EXPECT_NEAR(get(sum)[0], reference.loss(values), max * reference.loss(values)) << text;
      EXPECT_EQ(get(alone), get(sum)) << text;
      EXPECT_EQ(sink.asked(), std::vector<int>(head.params().size(), 1)) << text;
      const auto objective = [&] { return scale * reference.loss(values); };
      EXPECT_LT(distance(get(dx), testing::differences(objective, values)), max) << text;
      for (std::size_t p = 0; p < reference.w.size(); ++p) {
        const Vector gradient = testing::differences(objective, reference.w[p]);
        EXPECT_LT(distance(get(sink.views()[p]), gradient), max) << text << ": " << head.params()[p].name;
      }
      const double rows = static_cast<double>(kWidth * (config.columns() + (config.transform ? kWidth : 0)));
      EXPECT_EQ(head.flops({5, 10, 0}), 2.0 * 5 * rows) << text;
    }
  }
}

TEST(Head, AsksForLabels) {
  HeadConfig config{.vocabulary = 12, .vocabulary_slice = {.begin = 12, .total = 23}, .classes = 5};
  EXPECT_EQ(labels_of(config), LabelSpec());
  config.kind = HeadKind::masked_language_model;
  EXPECT_EQ(labels_of(config), (LabelSpec{LabelRows::own, 23}));
  config.vocabulary_slice = {};
  EXPECT_EQ(labels_of(config), (LabelSpec{LabelRows::own, 12}));
  config.kind = HeadKind::token_classification;
  EXPECT_EQ(labels_of(config), (LabelSpec{LabelRows::own, 5}));
  config.kind = HeadKind::sequence_classification;
  EXPECT_EQ(labels_of(config), (LabelSpec{LabelRows::first, 5}));
  config.last_row = true;
  EXPECT_EQ(labels_of(config), (LabelSpec{LabelRows::last, 5}));
}

TEST(Head, RejectsClassesOfASharedOrSlicedProjection) {
  const HeadConfig config{
      .width = kWidth, .output = "classifier", .kind = HeadKind::token_classification, .classes = kClasses};
  EXPECT_NO_THROW(HeadLayer{config});
  HeadConfig tied = config, sliced = config;
  tied.tied = true;
  EXPECT_THROW(HeadLayer(tied, "table"), InternalError);
  sliced.vocabulary_slice = {.total = 4};
  EXPECT_THROW(HeadLayer{sliced}, InternalError);
}

}  // namespace heads_test
}  // namespace hawser::nn
