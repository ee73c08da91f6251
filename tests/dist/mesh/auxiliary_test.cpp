// A loss that layers add to the model's: it couples all layers and all tokens, so that backward needs sums over layers
// and ranks. As each MLP of the toy has a column w of scores z = x w, and
//   loss = kWeight (sum over layers and tokens of z / N)^2        N tokens in a step
#include "nn/blocks/linear.h"
#include "nn/testing/forwarding_layer.h"
#include "ops/bias/add_bias.h"
#include "ops/copy/add.h"
#include "ops/copy/copy.h"
#include "ops/copy/scale.h"
#include "ops/gemm/gemm.h"
#include "toy_training.h"

namespace hawser {
namespace auxiliary_test {

using testing::Tensors;

constexpr double kWeight = 1;

class SquaredMean : public nn::AuxiliaryLoss {
 public:
  explicit SquaredMean(double tokens) : tokens_(tokens) {}
  std::int64_t statistics() const override { return 1; }
  std::int64_t factors() const override { return 1; }

  void run(nn::LayerContext& ctx, const Views& views) const override {
    Stream& stream = ctx.compute();
    const TensorView sum = ctx.temp(DType::f32, {1}), loss = ctx.temp(DType::f32, {1, 1});
    const double each = kWeight / (tokens_ * tokens_) * views.share;
    ops::bias_gradient(stream, {.dy = views.statistics, .db = sum});
    const TensorView matrix = sum.reshape({1, 1});
    ops::gemm(stream, {.a = matrix, .b = matrix, .c = loss});
    ops::scale(stream, {.x = loss, .factor = each});
    if (views.accumulate) {
      ops::add(stream, {.a = views.loss, .b = loss.reshape({1}), .y = views.loss});
    } else {
      ops::copy(stream, {.x = loss.reshape({1}), .y = views.loss});
    }
    if (views.factors.empty()) return;
    const TensorView ones = ctx.temp(DType::f32, views.factors.shape());
    ops::fill(stream, {.y = ones, .value = 2 * each});
    ops::gemm(stream, {.a = ones, .b = matrix, .c = views.factors});
    if (views.scale.empty()) return;
    const TensorView unscaled = ctx.temp(DType::f32, views.factors.shape());
    ops::copy(stream, {.x = views.factors, .y = unscaled});
    ops::gemm(stream, {.a = unscaled, .b = views.scale.reshape({1, 1}), .c = views.factors});
  }

 private:
  double tokens_;
};

class ScoredLayer : public nn::testing::ForwardingLayer {
 public:
  ScoredLayer(std::unique_ptr<nn::Layer> layer, int number, std::int64_t width, const nn::AuxiliaryLoss& loss)
      : ForwardingLayer(std::move(layer)), loss_(loss) {
    scores_ = {.weight = static_cast<int>(params_.size())};
    params_.push_back(nn::replicated_param(cat("layers.", number, ".scores.weight"), {1, width},
                                           {.kind = nn::Initial::Kind::normal, .std = 0.3}));
  }
  void forward(nn::LayerContext& ctx, const TensorView& x, const TensorView& residual, const TensorView& y,
               const nn::Saved& saved) const override {
    ForwardingLayer::forward(ctx, x, residual, y, saved);
    const nn::AuxiliaryViews views = ctx.auxiliary();
    if (views.statistics.empty()) return;
    const TensorView z = ctx.temp(ctx.dtype(), {x.size(0), 1});
    scores_.forward(ctx, x, z);
    ops::bias_gradient(ctx.compute(), {.dy = z, .db = views.statistics});
  }
  void recompute(nn::LayerContext& ctx, const nn::Saved& saved, const TensorView& y,
                 const nn::SavePolicy& policy) const override {
    EXPECT_TRUE(ctx.auxiliary().statistics.empty());
    ForwardingLayer::recompute(ctx, saved, y, policy);
  }
  void backward(nn::LayerContext& ctx, const TensorView& dy, const TensorView& dresidual, const TensorView& dx,
                const nn::Saved& saved, nn::GradientSink& sink, const nn::SavePolicy& policy) const override {
    const std::int64_t rows = saved.x.size(0);
    ForwardingLayer::backward(ctx, dy, dresidual, dx, saved, sink, policy);
    const TensorView ones = ctx.temp(DType::f32, {rows, 1}), dz = ctx.temp(ctx.dtype(), {rows, 1});
    const TensorView through = ctx.temp(ctx.dtype(), dx.shape());
    ops::fill(ctx.compute(), {.y = ones, .value = 1});
    ops::gemm(ctx.compute(), {.a = ones, .b = ctx.auxiliary().factors.reshape({1, 1}), .c = dz});
    scores_.weight_gradient(ctx, dz, saved.x, sink);
    scores_.input_gradient(ctx, dz, through);
    ops::add(ctx.compute(), {.a = dx, .b = through, .y = dx});
  }
  const nn::AuxiliaryLoss* auxiliary_loss() const override { return &loss_; }

 private:
  nn::Linear scores_;
  const nn::AuxiliaryLoss& loss_;
};

models::Model scored(const nn::AuxiliaryLoss& loss) {
  models::ModelDescription description = testing::toy_description();
  const std::int64_t width = description.embedding.width;
  return models::Model(std::move(description), nn::common_domain, {}, [&, width](auto layer, int number) {
    const bool mlp = number % 2 == 1;
    return mlp ? std::make_unique<ScoredLayer>(std::move(layer), number, width, loss) : std::move(layer);
  });
}

constexpr std::int64_t kLength = 64;  // a multiple of the chunks of all context ranks: no padding

plan::LayoutChoices layout_of(const comm::MeshSizes& mesh, const models::Model& model, std::int64_t sequences) {
  plan::LayoutChoices layout;
  layout.mesh = mesh;
  layout.batch_sizes = testing::toy_batch(mesh.context);
  layout.batch_sizes.sequence_length = kLength;
  layout.batch_sizes.sequences = sequences;
  layout.policies.assign(static_cast<std::size_t>(model.layers()), {});
  layout.gradient_clip = 0.02;
  return layout;
}

struct TrainedLosses {
  std::vector<double> losses, auxiliary;
  Tensors after;
  auto fields() { return std::tie(losses, auxiliary, after); }
};

TrainedLosses trained(const models::Model& model, plan::LayoutChoices layout, comm::Mesh& mesh, bool one_rank) {
  const testing::ToySteps steps(model, layout, mesh.coordinate(), layout.batch_sizes.sequences * layout.data_ranks(),
                                true);
  EXPECT_EQ(layout.micro_batches, 1);
  const auto device = rank_device({.random_delay_s = 2e-4, .delay_seed = 5});
  engine::Session session(model, plan::derive(layout, model), *device, mesh, {step::Purpose::train}, std::nullopt,
                          {.replay = true});
  session.initialise(3);
  session.set_progress({.loss_scale = 8});
  TrainedLosses result;
  for (int i = 0; i < 3; ++i) {
    step::StepInput input = steps.input(i);
    input.record.learning_rate = 0.01f;
    const step::StepOutput output = session.enqueue(step::Purpose::train, input);
    session.synchronize();
    result.losses.push_back(output.result->loss_sum.value());
    result.auxiliary.push_back(output.result->auxiliary_loss);
  }
  result.after = one_rank ? testing::states_of(session) : testing::assembled(session);
  return result;
}

// Relative, over all states.
double distance(const Tensors& a, const Tensors& b) {
  double difference = 0, norm = 0;
  for (const auto& [name, values] : b) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(double{a.at(name).at(i)} - values[i], 2);
      norm += std::pow(double{values[i]}, 2);
    }
  }
  return std::sqrt(difference / norm);
}

using AuxiliaryLoss = testing::CaseTest<testing::MeshCase>;

TEST_P(AuxiliaryLoss, TrainsLikeOneRank) {
  const testing::MeshCase& c = GetParam();
  const SquaredMean loss(static_cast<double>(2 * c.data_ranks() * kLength));
  const models::Model model = scored(loss);
  plan::LayoutChoices layout = layout_of(c.mesh, model, 2);
  for (auto& policy : layout.policies) policy = c.policy;
  const auto mesh = rank_mesh(c.mesh);
  const TrainedLosses ours = trained(model, layout, *mesh, false);
  const TrainedLosses one = testing::on_one_rank(
      [&] { return trained(model, layout_of({}, model, 2 * c.data_ranks()), *comm::make_self_mesh(), true); });
  for (std::size_t i = 0; i < one.losses.size(); ++i) {
    EXPECT_NEAR(ours.losses[i], one.losses[i], 1e-5 * one.losses[i]);
    EXPECT_NEAR(ours.auxiliary[i], one.auxiliary[i], 1e-4 * one.auxiliary[i]);  // its sum cancels
  }
  EXPECT_GT(one.auxiliary.front(), 1e-3);
  EXPECT_NE(one.auxiliary.back(), one.auxiliary.front());
  EXPECT_LT(distance(ours.after, one.after), 1e-5);
}

std::vector<testing::MeshCase> up_to_four_context_ranks() {
  std::vector<testing::MeshCase> out;
  const int world = the_world->size();
  for (int context = 1; context <= std::min(world, 4); context *= 2) {
    const int data = world / context;
    out.push_back({.mesh = {.context = context, .shard = data}, .policy = {.checkpointing = Checkpointing::full}});
    out.push_back({.mesh = {.context = context, .replicate = data}});
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Meshes, AuxiliaryLoss, ::testing::ValuesIn(up_to_four_context_ranks()), testing::CaseName());

// The gradient is that of the model's loss and the auxiliary loss together: as the model's does not depend on the
// scores, theirs is a difference of auxiliary losses, which are quadratic.
TEST(AuxiliaryLoss, GradientEqualsDifferencesOfTheLoss) {
  if (the_world->size() > 1) GTEST_SKIP() << "one rank is enough";
  const SquaredMean loss(4 * kLength);
  const models::Model model = scored(loss);
  plan::LayoutChoices layout = layout_of({}, model, 2);
  const auto self = comm::make_self_mesh();
  const testing::ToySteps steps(model, layout, self->coordinate(), 4, true);
  ASSERT_EQ(layout.micro_batches, 2);
  layout.schedule.group = 2;
  for (auto& policy : layout.policies) policy.delay_weight_gradients = true;
  const auto device = rank_device();
  engine::Session session(model, plan::derive(layout, model), *device, *self,
                          {step::Purpose::gradient_norms, step::Purpose::loss});
  session.initialise(3);
  const auto run = [&](step::Purpose purpose, const step::StepInput& input) {
    const step::StepOutput output = session.enqueue(purpose, input);
    session.synchronize();
    return static_cast<double>(output.result->auxiliary_loss);
  };
  const step::StepInput both = steps.input(0);
  const auto mean = [&] {  // a forward has one micro-batch
    step::StepInput first = both, second = both;
    first.batches.pop_back();
    second.batches.erase(second.batches.begin());
    return (run(step::Purpose::loss, first) + run(step::Purpose::loss, second)) / 2;
  };
  const double full = run(step::Purpose::gradient_norms, both);
  EXPECT_NEAR(mean(), full, 1e-6 * full);
  int checked = 0;
  for (int f = 0; f < static_cast<int>(model.flats().size()); ++f) {
    const nn::Flat& flat = model.flat(f);
    for (int p = 0; p < static_cast<int>(flat.params().size()); ++p) {
      if (!flat.params()[static_cast<std::size_t>(p)].name.ends_with("scores.weight")) continue;
      run(step::Purpose::gradient_norms, both);
      const float gradient =
          session.executor(step::Purpose::gradient_norms).gradient_shard(f).data<float>()[flat.offset(p)];
      float& weight = session.state().flat(f).stored.data<float>()[flat.offset(p)];
      const float before = weight;
      const auto at = [&](float value) {
        weight = value;
        session.parameters_changed();
        return mean();
      };
      const double difference = (at(before + 0.5f) - at(before - 0.5f));
      at(before);
      EXPECT_NEAR(gradient, difference, 1e-4 * std::abs(difference) + 1e-6);
      ++checked;
    }
  }
  EXPECT_EQ(checked, 2);
}

}  // namespace auxiliary_test
}  // namespace hawser
