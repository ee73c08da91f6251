// Adapters on a frozen base, on every mesh: losses, clipping and states after some steps are those of one rank, and
// frozen weights stay as they are.
#include "toy_training.h"

namespace hawser {
namespace adapters_test {

using testing::is_adapter;
using testing::Tensors;

struct Base {
  const char* name;
  models::ModelDescription description;
};

// Relative difference of the adapters after the steps. AdamW magnifies differences of small gradients.
constexpr double kMaxDistance = 2e-5;

std::vector<Base> bases() {
  models::ModelDescription experts = testing::toy_with_experts();
  for (models::BlockDescription& block : experts.blocks) {
    nn::AttentionConfig& a = block.attention;
    for (const std::string& name : {a.q, a.k, a.v, a.output}) a.adapters.push_back({name, 3, 2.0});
  }
  return {{"dropout", testing::toy_with_adapters(0.25)},
          {"magnitudes", testing::toy_with_adapters(0, true)},
          {"experts", std::move(experts)}};
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
testing::Trained train_alone(const models::Model& model, const plan::LayoutChoices& layout,
                             const testing::Training& training) {
  plan::LayoutChoices alone;
  alone.batch_sizes = testing::toy_batch(1);
  alone.batch_sizes.sequences = 2 * layout.data_ranks();
  alone.policies.assign(static_cast<std::size_t>(model.layers()), {});
  alone.gradient_clip = layout.gradient_clip;
  return testing::on_one_rank([&] {
    const auto self = comm::make_self_mesh();
    const testing::ToySteps steps(model, alone, self->coordinate(), 4LL * layout.data_ranks());
    const auto device = rank_device();
    engine::Session session(model, plan::derive(alone, model), *device, *self, {step::Purpose::train});
    session.initialise(3);
    testing::Trained trained;
    testing::take_steps(session, steps, training, trained);
    trained.after = testing::states_of(session);
    return trained;
  });
}

// Packed documents and two micro-batches. Each mesh has both settings of parallel.sharding; on 8 ranks every second
// mesh has one of them. Bases, policies and the other options are in turn.
TEST(Adapters, EveryMeshTrainsLikeOneRank) {
  constexpr Checkpointing kPolicies[] = {Checkpointing::none, Checkpointing::full, Checkpointing::gate_up,
                                         Checkpointing::selective};
  std::vector<std::pair<std::string, std::unique_ptr<models::Model>>> models;
  for (Base& base : bases()) {
    models.emplace_back(base.name, std::make_unique<models::Model>(base.description, [](const nn::Param& param) {
                          nn::FlatSpec spec = nn::common_domain(param);
                          spec.trainable = is_adapter(param.name);
                          return spec;
                        }));
  }
  // With a rate of 0.01, two logits of a router differ by 1e-7 in step 1, and rounding decides between their experts.
  const testing::Training training{.rates = 0.005f};
  std::map<std::pair<std::string, int>, testing::Trained> references;
  const int world = the_world->size();
  int turn = world, meshes = 0;
  for (plan::LayoutChoices layout : testing::meshes(*models.front().second)) {
    ++meshes;
    for (const ShardPolicy sharding : {ShardPolicy::parameters, ShardPolicy::optimizer}) {
      if (world == 8 && (meshes % 2 == 0 || (sharding == ShardPolicy::parameters) == (meshes / 2 % 2 == 0))) continue;
      const auto& [name, model] = models[static_cast<std::size_t>(turn) % models.size()];
      layout.shard_policy = sharding;
      layout.compute = DType::f32;
      layout.accumulation = turn / 2 % 2 == 0 ? GradientAccumulation::sharded : GradientAccumulation::local;
      for (nn::SavePolicy& policy : layout.policies) {
        policy.checkpointing = kPolicies[turn % 4];
        policy.delay_weight_gradients = turn / 3 % 2 == 0;
      }
      layout.schedule.group = 1 + turn / 2 % 2;
      ++turn;
      const std::string text =
          cat(name, ", ", testing::text_of(layout), sharding == ShardPolicy::optimizer ? ", sharded optimizer" : "");
      const testing::Trained many = testing::train(*model, layout, training);
      expect_frozen(many.before, many.after);
      EXPECT_GT(distance(many.after, many.before), 0.01) << text;
      testing::Trained& one = references[{name, layout.data_ranks()}];
      if (one.losses.empty()) one = train_alone(*model, layout, training);
      for (std::size_t i = 0; i < one.losses.size(); ++i) {
        EXPECT_NEAR(many.losses[i], one.losses[i], 1e-5 * one.losses[i]) << text;
        EXPECT_NEAR(many.clips[i], one.clips[i], 1e-5 * one.clips[i]) << text;
      }
      EXPECT_LT(distance(many.after, one.after), kMaxDistance) << text;
    }
  }
}

}  // namespace adapters_test
}  // namespace hawser
