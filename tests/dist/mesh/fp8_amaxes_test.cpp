// Amaxes of weights that the optimizer records as it writes them, on CPU ranks: they have the bits of a pass over the
// weights, after steps that update and steps that do not.
#include "nn/precision/fp8_scaling.h"
#include "support/exchanging_adamw.h"
#include "support/toy_slices.h"
#include "toy_training.h"

namespace hawser {
namespace fp8_amaxes_test {

using testing::assembled;
using testing::MeshCase;
using testing::Tensors;

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

struct RecordedAmaxes {
  std::vector<std::vector<float>> amaxes, scales;  // of each quantized flat after each step
  std::int64_t passes = 0;                         // that the steps made for amaxes
  Tensors states;
};

RecordedAmaxes trained(const models::Model& model, plan::LayoutChoices layout,
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
  RecordedAmaxes recorded;
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
      recorded.amaxes.push_back(testing::floats_of(flat.amax));
      recorded.scales.push_back(testing::floats_of(flat.scales));
    }
  }
  recorded.passes = quantizer->passes;
  recorded.states = assembled(session);
  return recorded;
}

bool same_bits(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  return std::ranges::equal(a, b, [](const auto& x, const auto& y) {
    return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
  });
}

struct AmaxCase {
  MeshCase on;
  bool experts = false;
  bool in_phases = false;  // the optimizer updates in three phases; else at once
  bool on_host = false;    // the state of what trains

  std::string name() const {
    return testing::joined(experts ? "experts" : "dense", on.name(), testing::name_if(in_phases, "in_phases"),
                           testing::name_if(on_host, "on_the_host"));
  }
  friend void PrintTo(const AmaxCase& c, std::ostream* out) { *out << c.name(); }
};

models::Model model_of(bool experts) {
  const auto in_fp8 = nn::with_fp8_weights(nn::common_domain, [](int) { return true; });
  if (!experts) return models::Model(testing::toy_description(false), in_fp8);
  models::ModelDescription description = testing::toy_with_experts(8);
  for (models::BlockDescription& block : description.blocks) block.moe->auxiliary_loss = block.moe->router_z_loss = 0;
  return models::Model(std::move(description), in_fp8);
}

using Fp8Amaxes = testing::CaseTest<AmaxCase>;

TEST_P(Fp8Amaxes, OfTheOptimizerAreThoseOfAPassOverTheWeights) {
  const AmaxCase& c = GetParam();
  const models::Model model = model_of(c.experts);
  plan::LayoutChoices layout = testing::clipped_layout(c.on, model);
  plan::set_formats(layout, model, {.saturation_limit = 1});
  for (const nn::Flat& flat : model.flats()) layout.host.state.push_back(c.on_host && flat.spec().trainable);
  std::shared_ptr<const optim::Optimizer> records = optim::make_adamw({.weight_decay = 0.1});
  std::shared_ptr<const optim::Optimizer> plain = std::make_shared<SilentAdamW>();
  if (c.in_phases) {
    records = std::make_shared<RecordingExchanges>();
    plain = std::make_shared<testing::ExchangingAdamW>();
  }
  const RecordedAmaxes with = trained(model, layout, records), without = trained(model, layout, plain);
  EXPECT_EQ(with.passes, 0);
  EXPECT_GT(without.passes, 0);
  ASSERT_FALSE(with.amaxes.empty());
  for (const std::vector<float>& amaxes : with.amaxes) {
    for (const float amax : amaxes) EXPECT_GT(amax, 0);
  }
  EXPECT_TRUE(same_bits(with.amaxes, without.amaxes));
  EXPECT_TRUE(same_bits(with.scales, without.scales));
  EXPECT_TRUE(with.states == without.states);
}

// Pairwise: with several ranks, a mesh has one way to update.
std::vector<AmaxCase> in_turn() {
  std::vector<AmaxCase> out;
  if (the_world->size() > 4) return out;  // fewer ranks are enough
  int turn = the_world->size();
  for (const bool experts : {false, true}) {
    for (MeshCase c : testing::sharded_meshes()) {
      c.compute = DType::f32;
      c.shard_policy = turn % 2 == 0 ? ShardPolicy::parameters : ShardPolicy::optimizer;
      const bool on_host = turn / 2 % 2 == 0;
      if (the_world->size() == 1 || turn % 3 != 0) out.push_back({c, experts, false, on_host});
      if (the_world->size() == 1 || turn % 3 == 0) out.push_back({c, experts, true, on_host});
      ++turn;
    }
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(InTurn, Fp8Amaxes, ::testing::ValuesIn(in_turn()), testing::CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Fp8Amaxes);

}  // namespace fp8_amaxes_test
}  // namespace hawser
