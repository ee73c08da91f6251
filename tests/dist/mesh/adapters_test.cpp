// Adapters on a frozen base, on every mesh: losses, clipping and states after some steps are those of one rank, and
// frozen weights stay as they are.
#include "toy_training.h"

namespace hawser {
namespace adapters_test {

using testing::is_adapter;
using testing::MeshCase;
using testing::Tensors;

// Relative difference of the adapters after the steps. AdamW magnifies differences of small gradients.
constexpr double kMaxDistance = 2e-5;

constexpr const char* kBases[] = {"dropout", "magnitudes", "experts"};

models::Model model_of(const std::string& base) {
  models::ModelDescription description = testing::toy_with_adapters(base == "dropout" ? 0.25 : 0, base == "magnitudes");
  if (base == "experts") {
    description = testing::toy_with_experts();
    for (models::BlockDescription& block : description.blocks) {
      nn::AttentionConfig& a = block.attention;
      for (const std::string& name : {a.q, a.k, a.v, a.output}) a.adapters.push_back({name, 3, 2.0});
    }
  }
  return models::Model(std::move(description), testing::train_adapters);
}

// Relative to the norm of all values.
double distance(const Tensors& a, const Tensors& b) {
  double difference = 0, norm = 0;
  for (const auto& [name, values] : b) {
    if (!is_adapter(name)) continue;
    EXPECT_EQ(a.at(name).size(), values.size()) << name;
    for (std::size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(double{a.at(name)[i]} - values[i], 2);
      norm += std::pow(double{values[i]}, 2);
    }
  }
  return std::sqrt(difference / norm);
}

void expect_frozen(const Tensors& before, const Tensors& after) {
  int frozen = 0;
  for (const auto& [name, values] : before) {
    if (is_adapter(name)) continue;
    EXPECT_EQ(after.at(name), values) << name;
    ++frozen;
  }
  EXPECT_GT(frozen, 10);
  for (const auto& [name, values] : after) EXPECT_TRUE(is_adapter(name) || !name.starts_with("optimizer/")) << name;
}

// Three steps on one rank. A micro-batch of all ranks together is one of this rank: routers have a loss of each
// micro-batch.
testing::Trained train_on_one_rank(const models::Model& model, const plan::LayoutChoices& layout,
                                   const testing::Training& training) {
  plan::LayoutChoices of_one;
  of_one.batch_sizes = testing::toy_batch(1);
  of_one.batch_sizes.sequences = 2 * layout.data_ranks();
  of_one.policies.assign(static_cast<std::size_t>(model.layers()), {});
  of_one.gradient_clip = layout.gradient_clip;
  return testing::on_one_rank([&] {
    const auto self = comm::make_self_mesh();
    const testing::ToySteps steps(model, of_one, self->coordinate(), 4LL * layout.data_ranks());
    const auto device = rank_device();
    engine::Session session(model, plan::derive(of_one, model), *device, *self, {step::Purpose::train});
    session.initialise(3);
    testing::Trained trained;
    testing::take_steps(session, steps, training, trained);
    trained.after = testing::states_of(session);
    return trained;
  });
}

struct AdapterCase {
  std::string base;
  MeshCase on;

  std::string name() const { return testing::joined(base, on.name()); }
  friend void PrintTo(const AdapterCase& c, std::ostream* out) { *out << c.name(); }
};

using Adapters = testing::CaseTest<AdapterCase>;

TEST_P(Adapters, TrainLikeOneRank) {
  const auto& [base, c] = GetParam();
  const models::Model model = model_of(base);
  const plan::LayoutChoices layout = testing::clipped_layout(c, model);
  // With a rate of 0.01, two logits of a router differ by 1e-7 in step 1, and rounding decides between their experts.
  const testing::Training training{.rates = 0.005f};
  const testing::Trained trained = testing::train(model, layout, training);
  expect_frozen(trained.before, trained.after);
  EXPECT_GT(distance(trained.after, trained.before), 0.01);
  static std::map<std::pair<std::string, int>, testing::Trained> references;
  testing::Trained& one = references[{base, c.data_ranks()}];
  if (one.losses.empty()) one = train_on_one_rank(model, layout, training);
  for (std::size_t i = 0; i < one.losses.size(); ++i) {
    EXPECT_NEAR(trained.losses[i], one.losses[i], 1e-5 * one.losses[i]);
    EXPECT_NEAR(trained.clips[i], one.clips[i], 1e-5 * one.clips[i]);
  }
  EXPECT_LT(distance(trained.after, one.after), kMaxDistance);
}

// Packed documents and two micro-batches. Each mesh has both settings of parallel.sharding; on 8 ranks every second
// mesh has one of them. Bases, policies and the other options are in turn.
std::vector<AdapterCase> in_turn() {
  constexpr Checkpointing kPolicies[] = {Checkpointing::none, Checkpointing::full, Checkpointing::gate_up,
                                         Checkpointing::selective};
  std::vector<AdapterCase> out;
  const int world = the_world->size();
  int turn = world, meshes = 0;
  for (MeshCase c : testing::sharded_meshes()) {
    ++meshes;
    for (const ShardPolicy sharding : {ShardPolicy::parameters, ShardPolicy::optimizer}) {
      if (world == 8 && (meshes % 2 == 0 || (sharding == ShardPolicy::parameters) == (meshes / 2 % 2 == 0))) continue;
      c.shard_policy = sharding;
      c.compute = DType::f32;
      c.accumulation = turn / 2 % 2 == 0 ? GradientAccumulation::sharded : GradientAccumulation::local;
      c.policy = {.checkpointing = kPolicies[turn % 4], .delay_weight_gradients = turn / 3 % 2 == 0};
      c.in_flight = 1 + turn / 2 % 2;
      out.push_back({kBases[turn % 3], c});
      ++turn;
    }
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(InTurn, Adapters, ::testing::ValuesIn(in_turn()), testing::CaseName());

}  // namespace adapters_test
}  // namespace hawser
