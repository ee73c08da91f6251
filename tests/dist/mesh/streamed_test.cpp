// Frozen weights in host memory, loaded before each use: training of adapters on them has the bits of training with all
// weights on the device.
#include "base/testing/temporary_folder.h"
#include "engine/load_state.h"
#include "engine/model_changes.h"
#include "engine/open_model.h"
#include "support/pipeline.h"
#include "toy_training.h"

namespace hawser {
namespace streamed_test {

using testing::Tensors;
using testing::Trained;

models::Model adapted(double dropout, bool train_embedding = false) {
  return models::Model(testing::toy_with_adapters(dropout), [=](const nn::Param& param) {
    nn::FlatSpec spec = nn::common_domain(param);
    spec.trainable = param.name.find("lora_") != std::string::npos ||
                     (train_embedding && param.name.find("embed_tokens") != std::string::npos);
    return spec;
  });
}

// All frozen weights, and with `state` what trains.
void put_on_host(plan::LayoutChoices& layout, const models::Model& model, bool state) {
  layout.host.state.clear();
  for (const nn::Flat& flat : model.flats()) layout.host.state.push_back(state || !flat.spec().trainable);
}

void expect_same(const Trained& a, const Trained& b, const std::string& text) {
  EXPECT_EQ(a.losses, b.losses) << text;
  EXPECT_EQ(a.clips, b.clips) << text;
  EXPECT_TRUE(a.before == b.before) << text;
  EXPECT_TRUE(a.after == b.after) << text;
}

void expect_no_change(const models::Model& model, plan::LayoutChoices layout, bool state, const std::string& name) {
  const std::string text = cat(name, ", ", testing::text_of(layout));
  const auto session_bytes = [](std::int64_t& host, std::int64_t& device) {
    return [&](engine::Session& session) {
      host = session.state().host_bytes();
      device = session.state().bytes();
    };
  };
  std::int64_t host = 0, rest = 0, none = 0, all = 0;
  const Trained resident = testing::train(model, layout, {.look = session_bytes(none, all)});
  put_on_host(layout, model, state);
  expect_same(testing::train(model, layout, {.look = session_bytes(host, rest)}), resident, text);
  EXPECT_EQ(none, 0);
  EXPECT_GT(host, 0) << text;
  EXPECT_LT(rest, all) << text;
}

TEST(Streamed, FrozenWeightsChangeNothing) {
  if (the_world->size() > 4) GTEST_SKIP() << "fewer ranks are enough";
  constexpr Checkpointing kPolicies[] = {Checkpointing::none, Checkpointing::full, Checkpointing::selective};
  const models::Model base = adapted(0.25), trained_table = adapted(0, true);
  int turn = 0;
  for (plan::LayoutChoices layout : testing::meshes(base)) {
    for (const ShardPolicy sharding : {ShardPolicy::parameters, ShardPolicy::optimizer}) {
      layout.shard_policy = sharding;
      layout.compute = turn % 2 == 0 ? DType::f32 : DType::bf16;
      layout.prefetch = turn % 3;
      for (nn::SavePolicy& policy : layout.policies) {
        policy.checkpointing = kPolicies[turn % 3];
        policy.delay_weight_gradients = turn % 4 == 3;
      }
      const bool table = turn % 2 == 1;
      expect_no_change(table ? trained_table : base, layout, turn % 4 > 1, cat("turn ", turn));
      ++turn;
    }
  }
}

// A base in NF4: its blocks are in host memory, 36 bytes for 64 weights, and are gathered as they are.
TEST(Streamed, BlocksChangeNothing) {
  if (the_world->size() > 4) GTEST_SKIP() << "fewer ranks are enough";
  models::ModelDescription description = testing::toy_of_nf4_blocks();
  testing::add_toy_adapters(description, 0);
  const auto spec = [](const nn::Param& param) {
    nn::FlatSpec own = nn::common_domain(param);
    own.trainable = param.name.find("lora_") != std::string::npos;
    return own;
  };
  const models::Model model(std::move(description), nn::with_nf4_weights(spec, [](int) { return true; }));
  int turn = 0;
  for (plan::LayoutChoices layout : testing::meshes(model)) {
    layout.shard_policy = turn % 2 == 0 ? ShardPolicy::parameters : ShardPolicy::optimizer;
    layout.prefetch = turn % 3;
    ++turn;
    expect_no_change(model, layout, false, "NF4");
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
    EXPECT_EQ(host, expected) << testing::text_of(layout);
  }
}

TEST(Streamed, FrozenWeightsOfStagesChangeNothing) {
  if (the_world->size() != 2 && the_world->size() != 4) GTEST_SKIP() << "two stages";
  const models::Model model = adapted(0);
  plan::LayoutChoices layout = testing::toy_layout({.shard = the_world->size() / 2}, model);
  layout.partition = {.stages = 2, .ends = {1, 2}};
  layout.schedule.passes = testing::one_forward_one_backward_of(2);
  expect_no_change(model, layout, false, "two stages");
}

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
      plan::LayoutChoices layout = testing::toy_layout({.shard = the_world->size()}, *open.model);
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
