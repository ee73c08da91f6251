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

Trained run_on_one_rank(const models::Model& model, const plan::LayoutChoices& layout, std::int64_t batch_size) {
  plan::LayoutChoices of_one;
  of_one.batch_sizes = testing::toy_batch(1);
  // A micro-batch of all ranks together is one of this rank: routers have a loss of each micro-batch.
  of_one.batch_sizes.sequences = 2 * layout.data_ranks();
  of_one.policies.assign(static_cast<std::size_t>(model.layers()), {});
  return testing::on_one_rank([&] {
    const auto self = comm::make_self_mesh();
    return run(model, of_one, *self, batch_size, testing::states_of);
  });
}

bool is_state_of(const std::string& state, const std::set<std::string>& tensors) {
  return tensors.contains(state.substr(state.starts_with("optimizer/") ? state.find('/', 10) + 1 : 0));
}

struct FrozenCase {
  std::size_t variant = 0;
  testing::MeshCase on;

  std::string name() const { return testing::joined(variants()[variant].name, on.name()); }
  friend void PrintTo(const FrozenCase& c, std::ostream* out) { *out << c.name(); }
};

using Frozen = testing::CaseTest<FrozenCase>;

TEST_P(Frozen, OthersTrainAsIfTheirUpdatesWereSuppressed) {
  const Variant variant = variants()[GetParam().variant];
  const models::Model frozen(variant.description,
                             models::freeze(nn::common_domain, models::ParamNames(variant.frozen))),
      suppressed(variant.description, models::with_groups(nn::common_domain, {{.match = variant.frozen}}));
  const plan::LayoutChoices layout = testing::clipped_layout(GetParam().on, frozen);
  const std::int64_t batch_size = 4LL * layout.data_ranks();
  const auto mesh = rank_mesh(layout.mesh);
  const Trained some = run(frozen, layout, *mesh, batch_size, testing::assembled);
  const Trained same = run(suppressed, layout, *mesh, batch_size, testing::assembled);
  EXPECT_EQ(some.losses, same.losses);
  std::set<std::string> names;
  for (const models::NamedParam& named : models::named_params(frozen)) {
    if (!named.trainable) names.insert(named.tensor);
  }
  int trained = 0, kept = 0;
  for (const auto& [name, values] : some.after) {
    if (is_state_of(name, names)) {
      EXPECT_FALSE(name.starts_with("optimizer/")) << name;
      EXPECT_TRUE(testing::same_bits(values, some.before.at(name))) << name;
      ++kept;
      continue;
    }
    EXPECT_TRUE(testing::same_bits(values, same.after.at(name))) << name;
    trained += testing::same_bits(values, some.before.at(name)) ? 0 : 1;
  }
  EXPECT_GT(trained, 2);
  EXPECT_GT(kept, 0);
  if (layout.compute != DType::f32) return;
  static std::map<std::pair<std::string, int>, Trained> references;
  Trained& one = references[{variant.name, layout.data_ranks()}];
  if (one.losses.empty()) one = run_on_one_rank(frozen, layout, batch_size);
  for (std::size_t i = 0; i < one.losses.size(); ++i) {
    EXPECT_NEAR(some.losses[i], one.losses[i], 1e-5 * one.losses[i]);
  }
  EXPECT_LT(testing::difference(some.after, one.after), 1e-5);
}

std::vector<FrozenCase> in_turn() {
  constexpr Checkpointing kPolicies[] = {Checkpointing::none, Checkpointing::full, Checkpointing::gate_up,
                                         Checkpointing::selective};
  std::vector<FrozenCase> out;
  const std::size_t count = variants().size();
  const int world = the_world->size();
  int turn = world, meshes = 0;
  for (testing::MeshCase c : testing::sharded_meshes()) {
    ++meshes;
    for (const ShardPolicy sharding : {ShardPolicy::parameters, ShardPolicy::optimizer}) {
      if (world == 8 && (meshes % 2 == 0 || (sharding == ShardPolicy::parameters) == (meshes / 2 % 2 == 0))) continue;
      c.shard_policy = sharding;
      c.policy.checkpointing = kPolicies[turn % 4];
      c.in_flight = 1 + turn / 2 % 2;
      out.push_back({static_cast<std::size_t>(turn) % count, c});
      ++turn;
    }
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(InTurn, Frozen, ::testing::ValuesIn(in_turn()), testing::CaseName());

}  // namespace frozen_test
}  // namespace hawser
