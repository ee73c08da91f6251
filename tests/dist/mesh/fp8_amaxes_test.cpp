// Amaxes of weights that the optimizer records as it writes them, on CPU ranks: they have the bits of a pass over the
// weights, after steps that update and steps that do not.
#include "nn/precision/fp8_scaling.h"
#include "support/exchanging_adamw.h"
#include "support/toy_slices.h"
#include "toy_training.h"

namespace hawser {
namespace fp8_amaxes_test {

using testing::assembled;
using testing::Tensors;
using testing::text_of;

// AdamW for whose weights the executor needs a pass of its own.
class SilentAdamW : public optim::Optimizer {
 public:
  std::string name() const override { return adamw_->name(); }
  std::vector<optim::StateSlot> slots(const nn::Flat& flat) const override { return adamw_->slots(flat); }
  std::int64_t scalars() const override { return adamw_->scalars(); }
  void prepare(Stream& stream, const optim::Prepare& step) const override { adamw_->prepare(stream, step); }
  void update(Stream& stream, const optim::FlatUpdate& u) const override {
    EXPECT_TRUE(u.amax.empty());
    adamw_->update(stream, u);
  }

 private:
  std::shared_ptr<const optim::Optimizer> adamw_ = optim::make_adamw({.weight_decay = 0.1});
};

// Records in the last of three phases.
class RecordingExchanges : public testing::ExchangingAdamW {
 public:
  bool records_amaxes(const nn::Flat&) const override { return true; }
};

class CountingFp8 : public nn::Fp8Scaling {
 public:
  using nn::Fp8Scaling::Fp8Scaling;
  void measure(Stream& stream, const nn::FlatValues& piece, const TensorView& amax) const override {
    ++passes;
    nn::Fp8Scaling::measure(stream, piece, amax);
  }
  mutable std::int64_t passes = 0;
};

struct Outcome {
  std::vector<std::vector<float>> amaxes, scales;  // of each quantized flat after each step
  std::int64_t passes = 0;                         // that the steps made for amaxes
  Tensors states;
};

Outcome trained(const models::Model& model, plan::LayoutChoices layout,
                std::shared_ptr<const optim::Optimizer> optimizer) {
  const auto quantizer = std::make_shared<CountingFp8>(nn::Fp8Options{});
  layout.quantizer = quantizer;
  layout.optimizer = std::move(optimizer);
  const auto mesh = rank_mesh(layout.mesh);
  const auto device = rank_device({.random_delay_s = 1e-4, .delay_seed = 5});
  const testing::ToySteps steps(model, layout, mesh->coordinate(), 2LL * the_world->size());
  engine::Session session(model, plan::derive(layout, model), *device, *mesh, {step::Purpose::train}, std::nullopt,
                          {.replay = true, .guard = true});
  session.initialise(3);
  quantizer->passes = 0;
  Outcome outcome;
  // The first step and the fourth update nothing, the third has a learning rate of 0.
  for (const int which : {0, 1, 2, 3, 4}) {
    step::StepInput input = steps.input(which % 4);
    input.record.step = which;
    input.record.learning_rate = which == 2 ? 0.0f : 0.01f;
    input.skip = which == 0 || which == 3;
    const step::StepOutput output = session.enqueue(step::Purpose::train, input);
    session.synchronize();
    EXPECT_EQ(output.result->skipped() != step::Skip::none, input.skip);
    for (int f = 0; f < session.state().flats(); ++f) {
      const step::FlatState& flat = session.state().flat(f);
      if (!flat.quantized_after_updates()) continue;
      outcome.amaxes.push_back(testing::floats_of(flat.amax));
      outcome.scales.push_back(testing::floats_of(flat.scales));
    }
  }
  outcome.passes = quantizer->passes;
  outcome.states = assembled(session);
  return outcome;
}

bool same_bits(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  return std::ranges::equal(a, b, [](const auto& x, const auto& y) {
    return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
  });
}

enum class Updates { both, at_once, in_phases };

void expect_the_same(const models::Model& model, const plan::LayoutChoices& layout, Updates updates,
                     const std::string& text) {
  const auto compare = [&](std::shared_ptr<const optim::Optimizer> records,
                           std::shared_ptr<const optim::Optimizer> plain) {
    const std::string name = cat(text, ", ", text_of(layout), ", ", records->phases(model.flat(0)).size(), " phases");
    const Outcome with = trained(model, layout, std::move(records)), without = trained(model, layout, std::move(plain));
    EXPECT_EQ(with.passes, 0) << name;
    EXPECT_GT(without.passes, 0) << name;
    ASSERT_FALSE(with.amaxes.empty());
    for (const std::vector<float>& amaxes : with.amaxes) {
      for (const float amax : amaxes) EXPECT_GT(amax, 0) << name;
    }
    EXPECT_TRUE(same_bits(with.amaxes, without.amaxes)) << name;
    EXPECT_TRUE(same_bits(with.scales, without.scales)) << name;
    EXPECT_TRUE(with.states == without.states) << name;
  };
  if (updates != Updates::in_phases) {
    compare(optim::make_adamw({.weight_decay = 0.1}), std::make_shared<SilentAdamW>());
  }
  if (updates != Updates::at_once) {
    compare(std::make_shared<RecordingExchanges>(), std::make_shared<testing::ExchangingAdamW>());
  }
}

TEST(Fp8Amaxes, OfTheOptimizerAreThoseOfAPassOverTheWeights) {
  if (the_world->size() > 4) GTEST_SKIP() << "fewer ranks are enough";
  const auto in_fp8 = nn::with_fp8_weights(nn::common_domain, [](int) { return true; });
  models::ModelDescription experts = testing::toy_with_experts(8);
  for (models::BlockDescription& block : experts.blocks) block.moe->auxiliary_loss = block.moe->router_z_loss = 0;
  const models::Model dense(testing::toy_description(false), in_fp8), mixture(std::move(experts), in_fp8);
  int turn = the_world->size();
  for (const models::Model* const model : {&dense, &mixture}) {
    for (const plan::LayoutChoices& base : testing::meshes(*model)) {
      plan::LayoutChoices layout = base;
      layout.compute = layout.reduce_dtype = layout.kv_reduce_dtype = DType::f32;
      plan::set_formats(layout, *model, {.saturation_limit = 1});
      layout.shard_policy = turn % 2 == 0 ? ShardPolicy::parameters : ShardPolicy::optimizer;
      layout.host.state.clear();
      for (const nn::Flat& flat : model->flats()) {
        layout.host.state.push_back(turn / 2 % 2 == 0 && flat.spec().trainable);
      }
      // Pairwise: with several ranks, a mesh has one way to update.
      const Updates updates = the_world->size() == 1 ? Updates::both
                              : turn % 3 == 0        ? Updates::in_phases
                                                     : Updates::at_once;
      ++turn;
      expect_the_same(*model, layout, updates, model == &dense ? "dense" : "experts");
    }
  }
}

}  // namespace fp8_amaxes_test
}  // namespace hawser
