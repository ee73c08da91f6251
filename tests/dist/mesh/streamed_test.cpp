// Frozen weights in host memory, loaded before each use: training of adapters on them has the bits of training with all
// weights on the device.
#include "base/testing/temporary_folder.h"
#include "engine/load_state.h"
#include "engine/model_changes.h"
#include "engine/open_model.h"
#include "toy_training.h"

namespace hawser {
namespace streamed_test {

using testing::CaseName;
using testing::MeshCase;
using testing::Tensors;
using testing::Trained;

models::Model adapted(double dropout, bool train_embedding = false) {
  return models::Model(testing::toy_with_adapters(dropout), [=](const nn::Param& param) {
    nn::FlatSpec spec = nn::common_domain(param);
    spec.trainable =
        testing::is_adapter(param.name) || (train_embedding && param.name.find("embed_tokens") != std::string::npos);
    return spec;
  });
}

// All frozen weights, and with `state` what trains.
void put_on_host(plan::LayoutChoices& layout, const models::Model& model, bool state) {
  layout.host.state.clear();
  for (const nn::Flat& flat : model.flats()) layout.host.state.push_back(state || !flat.spec().trainable);
}

// What trains beside adapters on a frozen base.
enum class Base { dropout, trained_table, nf4, plain };

models::Model model_of(Base base) {
  if (base == Base::plain) return adapted(0);
  if (base == Base::dropout) return adapted(0.25);
  if (base == Base::trained_table) return adapted(0, true);
  models::ModelDescription description = testing::toy_of_nf4_blocks();
  testing::add_toy_adapters(description, 0);
  return models::Model(std::move(description), nn::with_nf4_weights(testing::train_adapters, [](int) { return true; }));
}

struct StreamedCase {
  Base base;
  MeshCase on;
  bool state = false;  // of what trains, on the host

  std::string name() const {
    constexpr const char* kNames[] = {"dropout", "trained_table", "nf4", "plain"};
    return testing::joined(kNames[static_cast<int>(base)], on.name(), testing::name_if(state, "with_state"));
  }
  friend void PrintTo(const StreamedCase& c, std::ostream* out) { *out << c.name(); }
};

plan::LayoutChoices layout_of(const StreamedCase& c, const models::Model& model) {
  return c.on.partition.stages > 1 ? testing::toy_layout(c.on, model) : testing::clipped_layout(c.on, model);
}

using Streamed = testing::CaseTest<StreamedCase>;

TEST_P(Streamed, FrozenWeightsChangeNothing) {
  const models::Model model = model_of(GetParam().base);
  plan::LayoutChoices layout = layout_of(GetParam(), model);
  const auto session_bytes = [](std::int64_t& host, std::int64_t& device) {
    return [&](engine::Session& session) {
      host = session.state().host_bytes();
      device = session.state().bytes();
    };
  };
  std::int64_t host = 0, rest = 0, none = 0, all = 0;
  const Trained resident = testing::train(model, layout, {.look = session_bytes(none, all)});
  put_on_host(layout, model, GetParam().state);
  testing::expect_same_bits(testing::train(model, layout, {.look = session_bytes(host, rest)}), resident);
  EXPECT_EQ(none, 0);
  EXPECT_GT(host, 0);
  EXPECT_LT(rest, all);
}

std::vector<StreamedCase> in_turn() {
  constexpr Checkpointing kPolicies[] = {Checkpointing::none, Checkpointing::full, Checkpointing::selective};
  std::vector<StreamedCase> out;
  if (the_world->size() > 4) return out;  // fewer ranks are enough
  for (MeshCase c : testing::sharded_meshes()) {
    for (const ShardPolicy sharding : {ShardPolicy::parameters, ShardPolicy::optimizer}) {
      const int turn = static_cast<int>(out.size());
      c.shard_policy = sharding;
      c.compute = turn % 2 == 0 ? DType::f32 : DType::bf16;
      c.prefetch = turn % 3;
      c.policy = {.checkpointing = kPolicies[turn % 3], .delay_weight_gradients = turn % 4 == 3};
      out.push_back({turn % 2 == 1 ? Base::trained_table : Base::dropout, c, turn % 4 > 1});
    }
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(InTurn, Streamed, ::testing::ValuesIn(in_turn()), CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Streamed);

std::vector<StreamedCase> nf4() {
  std::vector<StreamedCase> out;
  if (the_world->size() > 4) return out;  // fewer ranks are enough
  for (MeshCase c : testing::sharded_meshes()) {
    const int turn = static_cast<int>(out.size());
    c.shard_policy = turn % 2 == 0 ? ShardPolicy::parameters : ShardPolicy::optimizer;
    c.prefetch = turn % 3;
    out.push_back({Base::nf4, c});
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Nf4, Streamed, ::testing::ValuesIn(nf4()), CaseName());

std::vector<StreamedCase> stages() {
  if (the_world->size() != 2 && the_world->size() != 4) return {};
  return {{Base::plain,
           {.mesh = {.shard = the_world->size() / 2},
            .partition = {.stages = 2, .ends = {1, 2}},
            .schedule = testing::Schedule::one_forward_one_backward}}};
}
INSTANTIATE_TEST_SUITE_P(Stages, Streamed, ::testing::ValuesIn(stages()), CaseName());

using StreamedBlocks = testing::CaseTest<StreamedCase>;

// A base in NF4: its blocks are in host memory, 36 bytes for 64 weights, and are gathered as they are.
TEST_P(StreamedBlocks, Take36BytesFor64Weights) {
  const models::Model model = model_of(GetParam().base);
  plan::LayoutChoices layout = layout_of(GetParam(), model);
  put_on_host(layout, model, false);
  std::int64_t expected = 0, host = 0;
  testing::train(model, layout, {.inputs = {}, .look = [&](engine::Session& session) {
                                   host = session.state().host_bytes();
                                   for (int f = 0; f < session.state().flats(); ++f) {
                                     const std::int64_t count = session.state().flat(f).count;
                                     const bool packed = model.flat(f).spec().packed();
                                     if (model.flat(f).spec().trainable) continue;
                                     expected +=
                                         round_up(packed ? count / 64 * 36 : count * size_of(layout.compute), 256);
                                   }
                                 }});
  EXPECT_EQ(host, expected);
}
INSTANTIATE_TEST_SUITE_P(Nf4, StreamedBlocks, ::testing::ValuesIn(nf4()), CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(StreamedBlocks);

// From files, with initial values for adapters that they do not have, and from the checkpoint of a run with all weights
// on the device.
TEST(Streamed, LoadsWeights) {
  const std::string folder = golden_folder + "/tied";
  for (const ComputePrecision precision : {ComputePrecision::automatic, ComputePrecision::fp8}) {
    Recipe recipe;
    recipe.adapter = {.kind = AdapterKind::lora, .rank = 2, .targets = {"q_proj"}};
    recipe.precision.compute = precision;
    recipe.precision.fp8.scaling = Fp8Scaling::current;
    Problems problems;
    engine::OpenModel open = engine::open_model(folder, false, problems, engine::changes_of(recipe));
    ASSERT_EQ(problems.lines(), "");
    std::vector<Tensors> weights;
    std::vector<double> losses;
    for (const bool streamed : {false, true}) {
      plan::LayoutChoices layout = testing::toy_layout({.mesh = {.shard = the_world->size()}}, *open.model);
      layout.compute = DType::bf16;
      if (precision == ComputePrecision::fp8) plan::set_formats(layout, *open.model, recipe.precision.fp8);
      if (streamed) put_on_host(layout, *open.model, false);
      const auto mesh = rank_mesh(layout.mesh);
      const auto device = rank_device();
      engine::Session session(*open.model, plan::derive(layout, *open.model), *device, *mesh, {step::Purpose::train},
                              std::nullopt, {.replay = true, .guard = true});
      engine::load_weights(session, open, 7);
      EXPECT_EQ(session.state().host_bytes() > 0, streamed);
      bool quantized = false;
      for (int f = 0; f < session.state().flats(); ++f) quantized |= session.state().flat(f).quantized_on_load();
      EXPECT_EQ(quantized, precision == ComputePrecision::fp8);
      weights.push_back(testing::assembled(session));
      const testing::ToySteps steps(*open.model, layout, mesh->coordinate(),
                                    layout.batch_sizes.sequences * layout.data_ranks());
      step::StepInput input = steps.input(0);
      input.record.learning_rate = 0.01f;
      const step::StepOutput output = session.enqueue(step::Purpose::train, input);
      session.synchronize();
      losses.push_back(output.result->loss_sum.value());
      weights.push_back(testing::assembled(session));
    }
    EXPECT_EQ(losses[0], losses[1]);
    EXPECT_TRUE(weights[0] == weights[2]);
    EXPECT_TRUE(weights[1] == weights[3]);
    EXPECT_FALSE(weights[0] == weights[1]);
  }
}

}  // namespace streamed_test
}  // namespace hawser
