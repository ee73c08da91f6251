// Weights that train and are in host memory, loaded before each use: training has the bits of training with all on the
// device, wherever master weights and slots are and whoever updates them.
#include "base/testing/temporary_folder.h"
#include "checkpoint/root.h"
#include "engine/load_state.h"
#include "engine/model_changes.h"
#include "engine/open_model.h"
#include "exact_layers.h"
#include "snapshot_case.h"
#include "support/exchanging_adamw.h"
#include "support/pipeline.h"
#include "toy_muon.h"
#include "train/saver.h"

namespace hawser {
namespace host_weights_test {

using testing::assembled;
using testing::Tensors;
using testing::Trained;

// Of master weights and slots.
enum class State { device, host, updated_on_host };
constexpr State kStates[] = {State::device, State::host, State::updated_on_host};

const char* text_of(State state) {
  constexpr const char* kTexts[] = {"state on the device", "state on the host", "updated on the host"};
  return kTexts[static_cast<int>(state)];
}

// The weights of all flats that train, or of every second one; the state is where `state` says.
void put_on_host(plan::LayoutChoices& layout, const models::Model& model, State state, bool all = true) {
  layout.host.state.clear();
  layout.host.weights.clear();
  layout.host.updates = state == State::updated_on_host;
  int number = 0;
  for (const nn::Flat& flat : model.flats()) {
    const bool trains = flat.spec().trainable;
    layout.host.weights.push_back(trains && (all || number % 2 == 0));
    layout.host.state.push_back(trains && state != State::device && (all || number % 3 != 1));
    number += trains ? 1 : 0;
  }
}

void expect_same(const Trained& a, const Trained& b, const std::string& text) {
  EXPECT_EQ(a.losses, b.losses) << text;
  EXPECT_EQ(a.clips, b.clips) << text;
  EXPECT_TRUE(a.before == b.before) << text;
  EXPECT_TRUE(a.after == b.after) << text;
}

// With all on the host that may be there: what it takes there, without scales.
std::int64_t host_bytes_of(engine::Session& session, State state) {
  std::int64_t bytes = 0;
  const auto add = [&](std::int64_t more) { bytes += round_up(more, Device::kAlignment); };
  for (int f = 0; f < session.state().flats(); ++f) {
    const step::FlatState& flat = session.state().flat(f);
    if (!flat.held || !session.model().flat(f).spec().trainable) continue;
    const DType compute = session.layout().compute;
    add(flat.count * size_of(compute));
    if (state == State::device) continue;
    if (compute != DType::f32) add(4 * flat.count);
    for (const TensorView& slot : flat.slots) add(slot.bytes());
  }
  return bytes;
}

Trained train(
    const models::Model& model, const plan::LayoutChoices& layout, std::int64_t micro_batches,
    const std::function<void(engine::Session&)>& look = [](engine::Session&) {}) {
  return testing::train(model, layout, {.micro_batches = micro_batches, .without_update = 1, .look = look});
}

void expect_no_change(const models::Model& model, plan::LayoutChoices layout, std::int64_t micro_batches,
                      const std::vector<State>& states, const std::string& name) {
  std::int64_t all = 0;
  const Trained resident = train(model, layout, micro_batches, [&](engine::Session& session) {
    all = session.state().bytes();
    EXPECT_EQ(session.state().host_bytes(), 0);
  });
  for (const State state : states) {
    const std::string text =
        cat(name, ", ", testing::text_of(layout), ", ", micro_batches, " micro-batches, ", text_of(state));
    put_on_host(layout, model, state);
    const Trained trained = train(model, layout, micro_batches, [&](engine::Session& session) {
      const step::ModelState& own = session.state();
      const std::int64_t host = host_bytes_of(session, state);
      EXPECT_EQ(own.host_bytes(), host) << text;
      EXPECT_EQ(session.plan(step::Purpose::train).host_state_bytes, host) << text;
      // Otherwise the device had weights of all ranks.
      if (!layout.shards() || layout.gathers_weights()) {
        EXPECT_EQ(own.bytes() + host, all) << text;
      }
      const bool master = state == State::device && layout.compute != DType::f32;
      EXPECT_EQ(own.parameter_bytes() > 0, master) << text;
      EXPECT_EQ(own.optimizer_bytes() > 0, state == State::device) << text;
    });
    expect_same(trained, resident, text);
  }
}

// Every state with both dtypes, of four ranks with that of the mesh; micro-batches, policies, sharding and tied
// embeddings take turns.
TEST(HostWeights, ChangeNothing) {
  if (the_world->size() > 4) GTEST_SKIP() << "mesh_1, mesh_2 and mesh_4 run it";
  constexpr Checkpointing kPolicies[] = {Checkpointing::none, Checkpointing::full, Checkpointing::selective};
  const models::Model tied(testing::toy_description()), untied(testing::toy_description(false));
  std::size_t turn = 0;
  for (plan::LayoutChoices layout : testing::meshes(tied)) {
    const std::vector<DType> one{layout.compute}, both{DType::f32, DType::bf16};
    for (const DType compute : the_world->size() == 4 ? one : both) {
      layout.compute = compute;
      layout.shard_policy = (turn + turn / 2) % 2 == 0 ? ShardPolicy::optimizer : ShardPolicy::parameters;
      layout.prefetch = static_cast<int>(turn / 2 % 3);
      for (nn::SavePolicy& policy : layout.policies) {
        policy.checkpointing = kPolicies[turn % 3];
        policy.delay_weight_gradients = turn % 4 == 3;
      }
      expect_no_change(turn % 3 == 1 ? untied : tied, layout, turn / 2 % 2 == 0 ? 3 : 1,
                       {std::begin(kStates), std::end(kStates)}, cat("turn ", turn));
      ++turn;
    }
  }
}

// A tied embedding, whose flat two stages have: each writes its own weights back.
TEST(HostWeights, OfStagesChangeNothing) {
  const int world = the_world->size();
  if (world != 2 && world != 4) GTEST_SKIP() << "mesh_2 and mesh_4 run it";
  const models::Model model(testing::toy_description());
  plan::LayoutChoices layout = testing::toy_layout({.shard = world / 2}, model);
  layout.compute = DType::bf16;
  layout.partition = {.stages = 2, .ends = {1, 2}};
  layout.schedule.passes = testing::one_forward_one_backward_of(2);
  expect_no_change(model, layout, 3, {State::host, State::updated_on_host}, "two stages");
  layout.compute = DType::f32, layout.shard_policy = ShardPolicy::optimizer;
  expect_no_change(model, layout, 1, {State::device}, "two stages");
}

// Of several phases, with slots of other shapes and dtypes. Where some flats are on the host, some have their state
// there, too.
TEST(HostWeights, OfOtherOptimizersChangeNothing) {
  if (the_world->size() > 4) GTEST_SKIP() << "mesh_1, mesh_2 and mesh_4 run it";
  const models::Model tied(testing::toy_description()), muon(testing::toy_description(), testing::Muon::spec_of),
      in_blocks(testing::toy_of_nf4_blocks(), testing::EightBits::spec_of);
  std::size_t turn = 0;
  const auto expect_with = [&](const models::Model& model, std::shared_ptr<const optim::Optimizer> optimizer) {
    const std::vector<plan::LayoutChoices> meshes = testing::meshes(model);
    plan::LayoutChoices layout = meshes[turn % meshes.size()];
    layout.optimizer = std::move(optimizer);
    layout.compute = turn % 2 == 0 ? DType::bf16 : DType::f32;
    layout.shard_policy = turn % 2 == 0 ? ShardPolicy::parameters : ShardPolicy::optimizer;
    const Trained resident = train(model, layout, 1);
    put_on_host(layout, model, State::host, turn == 1);
    expect_same(train(model, layout, 1), resident, cat(layout.optimizer->name(), ", ", testing::text_of(layout)));
    ++turn;
  };
  expect_with(tied, std::make_shared<testing::ExchangingAdamW>());
  expect_with(muon, std::make_shared<testing::Muon>());
  expect_with(in_blocks, std::make_shared<testing::EightBits>());
}

// Weights with scales are quantized on the device after the update and written back after that: in float32, of which
// backward reads the transposes, and in E4M3.
TEST(HostWeights, QuantizedOnesChangeNothing) {
  if (the_world->size() > 4) GTEST_SKIP() << "mesh_1, mesh_2 and mesh_4 run it";
  for (const bool transposed : {false, true}) {
    const models::Model model = testing::exact_model(true, transposed, true);
    const std::vector<plan::LayoutChoices> meshes = testing::meshes(model);
    plan::LayoutChoices layout = testing::exact_layout(model, transposed ? meshes.back().mesh : meshes.front().mesh);
    layout.shard_policy = transposed ? ShardPolicy::parameters : ShardPolicy::optimizer;
    const auto states_of = [&] {
      const auto groups = rank_mesh(layout.mesh);
      testing::ExactRun run(model, layout, *groups, 2LL * the_world->size());
      testing::write_exact(run.session());
      for (int step = 0; step < 4; ++step) {
        run.step(step, [&](step::StepInput& input) { input.skip = step == 2; });
      }
      std::vector<Tensors> states{assembled(run.session())};
      run.session().parameters_changed();  // measures them outside of a step
      EXPECT_TRUE(assembled(run.session()) == states.front());
      run.step(4);
      states.push_back(assembled(run.session()));
      EXPECT_EQ(run.session().state().host_bytes() > 0, !layout.host.weights.empty());
      return states;
    };
    const std::vector<Tensors> resident = states_of();
    EXPECT_FALSE(resident[0] == resident[1]);
    for (const State state : {State::device, State::host}) {
      put_on_host(layout, model, state);
      EXPECT_TRUE(states_of() == resident) << transposed << ", " << text_of(state);
    }
  }
  const models::Model fp8(testing::toy_description(false),
                          nn::with_fp8_weights(nn::common_domain, [](int) { return true; }));
  for (const ShardPolicy sharding : {ShardPolicy::parameters, ShardPolicy::optimizer}) {
    plan::LayoutChoices layout =
        sharding == ShardPolicy::parameters ? testing::meshes(fp8).front() : testing::meshes(fp8).back();
    layout.compute = layout.reduce_dtype = layout.kv_reduce_dtype = DType::f32;
    layout.shard_policy = sharding;
    plan::set_formats(layout, fp8, {.saturation_limit = 1});
    const Trained resident = train(fp8, layout, 1);
    for (const State state : {State::device, State::host}) {
      put_on_host(layout, fp8, state);
      const Trained trained = train(fp8, layout, 1, [](engine::Session& session) {
        for (int f = 0; f < session.state().flats(); ++f) {
          const step::FlatState& flat = session.state().flat(f);
          EXPECT_TRUE(flat.streamed);
          EXPECT_EQ(flat.quantized_after_updates(), flat.compute.dtype() == DType::f8e4m3);
        }
      });
      expect_same(trained, resident, cat("FP8, ", testing::text_of(layout), ", ", text_of(state)));
    }
  }
}

// A session of the world, with random delays.
class WorldRun {
 public:
  WorldRun(const models::Model& model, plan::LayoutChoices layout,
           const std::vector<step::Purpose>& purposes = {step::Purpose::train})
      : layout_(std::move(layout)),
        mesh_(rank_mesh(plan::derive(layout_, model).mesh)),
        device_(rank_device({.random_delay_s = 1e-4, .delay_seed = 5})),
        steps_(model, layout_, mesh_->coordinate(), layout_.batch_sizes.sequences * layout_.data_ranks()),
        session_(model, plan::derive(layout_, model), *device_, *mesh_, purposes, std::nullopt,
                 {.replay = true, .guard = kRankDevice == DeviceKind::cpu}) {
    session_.initialise(3);
  }
  step::StepOutput enqueue(std::int64_t which, step::Purpose purpose = step::Purpose::train) {
    step::StepInput input = steps_.input(which);
    input.record.learning_rate = 0.01f;
    return session_.enqueue(purpose, input);
  }
  double loss(std::int64_t which, step::Purpose purpose = step::Purpose::train) {
    const step::StepOutput output = enqueue(which, purpose);
    session_.synchronize();
    return output.result->loss_sum.value();
  }
  engine::Session& session() { return session_; }

 private:
  plan::LayoutChoices layout_;
  std::shared_ptr<comm::Mesh> mesh_;
  std::shared_ptr<Device> device_;
  testing::ToySteps steps_;
  engine::Session session_;
};

// What is saved with weights in one place continues in the other to the same bits.
TEST(HostWeights, LoadWhatTheOtherPlaceHasSaved) {
  const models::Model model(testing::toy_description());
  const TemporaryFolder own;
  const std::string root = the_world->all_gather_strings(own.path("checkpoints")).front();
  plan::LayoutChoices resident = testing::meshes(model).back();
  resident.compute = DType::bf16;
  WorldRun straight(model, resident);
  std::vector<double> expected;
  for (const std::int64_t which : {0, 1, 2, 3}) expected.push_back(straight.loss(which));
  const Tensors end = assembled(straight.session());
  int number = 0;
  for (const State state : kStates) {
    plan::LayoutChoices layout = resident;
    put_on_host(layout, model, state);
    for (const bool loads : {false, true}) {
      const std::string text = cat(text_of(state), loads ? ", loads" : ", saves");
      WorldRun saving(model, loads ? resident : layout);
      for (const std::int64_t which : {0, 1}) saving.enqueue(which);
      train::save(saving.session(), the_world, {.root = root, .keep = 6},
                  {.step = ++number, .recipe = "{}", .config = "{}"});
      WorldRun loading(model, loads ? layout : resident);
      checkpoint::Checkpoint checkpoint = checkpoint::Checkpoint::open(cat(root, "/", checkpoint::step_name(number)));
      engine::load(loading.session(), checkpoint);
      loading.session().set_progress({.step = 2});
      EXPECT_TRUE(assembled(loading.session()) == assembled(saving.session())) << text;
      for (const std::int64_t which : {2, 3}) {
        EXPECT_EQ(loading.loss(which), expected[static_cast<std::size_t>(which)]) << text;
      }
      EXPECT_TRUE(assembled(loading.session()) == end) << text;
    }
  }
}

TEST(HostWeights, ASnapshotHasThoseOfItsStep) {
  const models::Model model(testing::toy_description());
  for (const State state : kStates) {
    plan::LayoutChoices layout = testing::meshes(model).front();
    layout.compute = DType::f32;
    put_on_host(layout, model, state);
    WorldRun run(model, layout);
    testing::expect_snapshot_of_its_step(run, text_of(state));
  }
}

// Steps of other kinds load what the last update has written back.
TEST(HostWeights, OtherStepsReadTheUpdatedOnes) {
  const models::Model model(testing::toy_description());
  plan::LayoutChoices layout = testing::meshes(model).back();
  layout.compute = DType::bf16;
  std::vector<std::vector<double>> losses;
  const auto run_it = [&] {
    WorldRun run(model, layout, {step::Purpose::train, step::Purpose::gradient_norms, step::Purpose::loss});
    std::vector<double>& own = losses.emplace_back();
    for (const std::int64_t which : {0, 1}) {
      own.push_back(run.loss(which));
      own.push_back(run.loss(2, step::Purpose::gradient_norms));
      own.push_back(run.loss(3, step::Purpose::loss));
    }
  };
  run_it();
  EXPECT_NE(losses[0][2], losses[0][5]);
  for (const State state : kStates) {
    put_on_host(layout, model, state);
    run_it();
    EXPECT_EQ(losses.back(), losses.front()) << text_of(state);
  }
}

// Weights of a folder, and initial values of the adapters that it does not have; the frozen base is on the host by
// either name.
TEST(HostWeights, AreLoadedFromFiles) {
  const std::string folder = golden_folder + "/tied";
  for (const bool adapters : {false, true}) {
    Recipe recipe;
    if (adapters) recipe.adapter = {.kind = AdapterKind::lora, .rank = 2, .targets = {"q_proj"}};
    Problems problems;
    engine::OpenModel open = engine::open_model(folder, false, problems, engine::changes_of(recipe));
    ASSERT_EQ(problems.lines(), "");
    plan::LayoutChoices layout = testing::toy_layout({.shard = the_world->size()}, *open.model);
    layout.compute = DType::bf16;
    const auto loaded = [&] {
      WorldRun run(*open.model, layout);
      engine::load_weights(run.session(), open, 7);
      const Tensors before = assembled(run.session());
      const double loss = run.loss(0);
      return std::tuple(before, loss, assembled(run.session()), run.session().state().host_bytes());
    };
    const auto device = loaded();
    for (const State state : kStates) {
      put_on_host(layout, *open.model, state);
      layout.host.weights.assign(open.model->flats().size(), true);
      const auto host = loaded();
      EXPECT_TRUE(std::get<0>(host) == std::get<0>(device)) << text_of(state);
      EXPECT_EQ(std::get<1>(host), std::get<1>(device)) << text_of(state);
      EXPECT_TRUE(std::get<2>(host) == std::get<2>(device)) << text_of(state);
      EXPECT_GT(std::get<3>(host), 0);
    }
  }
}

}  // namespace host_weights_test
}  // namespace hawser
