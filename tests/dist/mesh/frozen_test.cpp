// Frozen parameters (train.freeze) on every mesh: the others train to the bit as if the updates of these were
// suppressed, and like on one rank.
#include "models/frozen_params.h"
#include "models/param_groups.h"
#include "toy_training.h"

namespace hawser {
namespace frozen_test {

using testing::Tensors;
using testing::Trained;

struct Variant {
  std::string name;
  models::ModelDescription description;
  std::vector<std::string> frozen;
};

std::vector<Variant> variants() {
  return {{"the lower half", testing::toy_description(false), {"embed_tokens", "layers.0"}},
          {"tied embedding and MLPs", testing::toy_description(), {"embed_tokens", "lm_head", "mlp"}},
          {"all but the head", testing::toy_description(false), {"model"}},
          {"norms and biases", testing::toy_description(), {".*norm", "bias"}},
          {"experts", testing::toy_with_experts(), {"experts", "layers.1.self_attn"}}};
}

Trained run(const models::Model& model, plan::LayoutChoices layout, comm::Mesh& mesh, std::int64_t batch_size,
            const std::function<Tensors(engine::Session&)>& states) {
  // Flats of FlatSpec::group 1, which suppressed() has, do not learn.
  layout.optimizer = optim::make_adamw({.epsilon = 1e-5, .weight_decay = 0.1, .groups = 2});
  layout.gradient_clip.reset();  // the norm of all gradients is not that of the others
  testing::Training training{.rates = 0.005f};
  training.rates.of[1] = 0;
  const testing::ToySteps steps(model, layout, mesh.coordinate(), batch_size);
  const auto device = rank_device({.random_delay_s = 2e-4, .delay_seed = 5});
  engine::Session session(model, plan::derive(layout, model), *device, mesh, {step::Purpose::train});
  session.initialise(3);
  Trained trained{.before = states(session)};
  testing::take_steps(session, steps, training, trained);
  trained.after = states(session);
  return trained;
}

Trained run_alone(const models::Model& model, const plan::LayoutChoices& layout, std::int64_t batch_size) {
  plan::LayoutChoices alone;
  alone.batch_sizes = testing::toy_batch(1);
  // A micro-batch of all ranks together is one of this rank: routers have a loss of each micro-batch.
  alone.batch_sizes.sequences = 2 * layout.data_ranks();
  alone.policies.assign(static_cast<std::size_t>(model.layers()), {});
  return testing::on_one_rank([&] {
    const auto self = comm::make_self_mesh();
    return run(model, alone, *self, batch_size, testing::states_of);
  });
}

bool is_state_of(const std::string& state, const std::set<std::string>& tensors) {
  return tensors.contains(state.substr(state.starts_with("optimizer/") ? state.find('/', 10) + 1 : 0));
}

TEST(Frozen, OthersTrainAsIfTheirUpdatesWereSuppressed) {
  constexpr Checkpointing kPolicies[] = {Checkpointing::none, Checkpointing::full, Checkpointing::gate_up,
                                         Checkpointing::selective};
  const std::vector<Variant> all = variants();
  std::map<std::pair<std::string, int>, Trained> alone;
  const int world = the_world->size();
  int turn = world, meshes = 0;
  for (plan::LayoutChoices layout : testing::meshes(models::Model(testing::toy_description()))) {
    ++meshes;
    for (const ShardPolicy sharding : {ShardPolicy::parameters, ShardPolicy::optimizer}) {
      if (world == 8 && (meshes % 2 == 0 || (sharding == ShardPolicy::parameters) == (meshes / 2 % 2 == 0))) continue;
      const Variant& variant = all[static_cast<std::size_t>(turn) % all.size()];
      const models::Model frozen(variant.description,
                                 models::freeze(nn::common_domain, models::ParamNames(variant.frozen))),
          suppressed(variant.description, models::with_groups(nn::common_domain, {{.match = variant.frozen}}));
      layout.shard_policy = sharding;
      for (nn::SavePolicy& policy : layout.policies) policy.checkpointing = kPolicies[turn % 4];
      layout.schedule.group = 1 + turn / 2 % 2;
      ++turn;
      const std::string text = cat(variant.name, ", ", testing::text_of(layout),
                                   sharding == ShardPolicy::optimizer ? ", sharded optimizer" : "");
      const std::int64_t batch_size = 4LL * layout.data_ranks();
      const auto mesh = rank_mesh(layout.mesh);
      const Trained some = run(frozen, layout, *mesh, batch_size, testing::assembled);
      const Trained same = run(suppressed, layout, *mesh, batch_size, testing::assembled);
      EXPECT_EQ(some.losses, same.losses) << text;
      std::set<std::string> names;
      for (const models::NamedParam& named : models::named_params(frozen)) {
        if (!named.trainable) names.insert(named.tensor);
      }
      int trained = 0, kept = 0;
      for (const auto& [name, values] : some.after) {
        if (is_state_of(name, names)) {
          EXPECT_FALSE(name.starts_with("optimizer/")) << text << ": " << name;
          EXPECT_TRUE(testing::same_bits(values, some.before.at(name))) << text << ": " << name;
          ++kept;
          continue;
        }
        EXPECT_TRUE(testing::same_bits(values, same.after.at(name))) << text << ": " << name;
        trained += testing::same_bits(values, some.before.at(name)) ? 0 : 1;
      }
      EXPECT_GT(trained, 2) << text;
      EXPECT_GT(kept, 0) << text;
      if (layout.compute != DType::f32) continue;
      Trained& one = alone[{variant.name, layout.data_ranks()}];
      if (one.losses.empty()) one = run_alone(frozen, layout, batch_size);
      for (std::size_t i = 0; i < one.losses.size(); ++i) {
        EXPECT_NEAR(some.losses[i], one.losses[i], 1e-5 * one.losses[i]) << text;
      }
      EXPECT_LT(testing::difference(some.after, one.after), 1e-5) << text;
    }
  }
}

}  // namespace frozen_test
}  // namespace hawser
