// Weights that train and are in host memory, loaded before each use: training has the bits of training with all on the
// device, wherever master weights and slots are.
#include "base/testing/temporary_folder.h"
#include "checkpoint/root.h"
#include "engine/load_state.h"
#include "engine/model_changes.h"
#include "engine/open_model.h"
#include "exact_layers.h"
#include "plan/pipeline_form.h"
#include "snapshot_case.h"
#include "support/exchanging_adamw.h"
#include "toy_muon.h"
#include "train/saver.h"

namespace hawser {
namespace host_weights_test {

using testing::assembled;
using testing::CaseName;
using testing::CaseTest;
using testing::clipped_layout;
using testing::expect_same_bits;
using testing::MeshCase;
using testing::same_bits;
using testing::sharded_meshes;
using testing::Tensors;
using testing::Trained;

// Of master weights and slots.
enum class State { device, host };
constexpr State kStates[] = {State::device, State::host};

std::string name_of(State state) {
  return state == State::device ? "state_on_the_device" : "state_on_the_host";
}

// The weights of all flats that train, or of every second one; the state is where `state` says.
void put_on_host(plan::LayoutChoices& layout, const models::Model& model, State state, bool all = true) {
  layout.host.state.clear();
  layout.host.weights.clear();
  int number = 0;
  for (const nn::Flat& flat : model.flats()) {
    const bool trains = flat.spec().trainable;
    layout.host.weights.push_back(trains && (all || number % 2 == 0));
    layout.host.state.push_back(trains && state != State::device && (all || number % 3 != 1));
    number += trains ? 1 : 0;
  }
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

struct HostCase {
  MeshCase on;
  State state = State::device;

  std::string name() const { return testing::joined(on.name(), name_of(state)); }
  friend void PrintTo(const HostCase& c, std::ostream* out) { *out << c.name(); }
};

// Each case with each place of the state.
std::vector<HostCase> with_states(const std::vector<MeshCase>& cases) {
  std::vector<HostCase> out;
  for (const MeshCase& c : cases) {
    for (const State state : kStates) out.push_back({c, state});
  }
  return out;
}

using HostWeights = CaseTest<HostCase>;

TEST_P(HostWeights, ChangeNothing) {
  const auto& [c, state] = GetParam();
  const models::Model model(testing::toy_description(c.tied));
  plan::LayoutChoices layout = clipped_layout(c, model);
  if (c.partition.stages > 1) layout.optimizer = testing::toy_adamw();
  struct Resident {
    Trained trained;
    std::int64_t bytes = 0;
  };
  static std::map<std::string, Resident> references;
  Resident& resident = references[c.name()];
  if (resident.bytes == 0) {
    resident.trained = train(model, layout, c.micro_batches, [&](engine::Session& session) {
      resident.bytes = session.state().bytes();
      EXPECT_EQ(session.state().host_bytes(), 0);
    });
  }
  put_on_host(layout, model, state);
  const Trained trained = train(model, layout, c.micro_batches, [&, state = state](engine::Session& session) {
    const step::ModelState& own = session.state();
    const std::int64_t host = host_bytes_of(session, state);
    EXPECT_EQ(own.host_bytes(), host);
    EXPECT_EQ(session.plan(step::Purpose::train).host_state_bytes, host);
    // Otherwise the device had weights of all ranks.
    if (!layout.shards() || layout.gathers_weights()) {
      EXPECT_EQ(own.bytes() + host, resident.bytes);
    }
    const bool master = state == State::device && layout.compute != DType::f32;
    EXPECT_EQ(own.parameter_bytes() > 0, master);
    EXPECT_EQ(own.optimizer_bytes() > 0, state == State::device);
  });
  expect_same_bits(trained, resident.trained);
}

// Every state with both dtypes, of four ranks with that of the mesh; micro-batches, policies, sharding and tied
// embeddings take turns.
std::vector<HostCase> every_mesh() {
  if (the_world->size() > 4) return {};  // long on eight ranks
  constexpr Checkpointing kPolicies[] = {Checkpointing::none, Checkpointing::full, Checkpointing::selective};
  std::vector<MeshCase> out;
  for (MeshCase c : sharded_meshes()) {
    const std::vector<DType> one{c.compute}, both{DType::f32, DType::bf16};
    for (const DType compute : the_world->size() == 4 ? one : both) {
      const std::size_t turn = out.size();
      c.compute = compute;
      c.shard_policy = (turn + turn / 2) % 2 == 0 ? ShardPolicy::optimizer : ShardPolicy::parameters;
      c.prefetch = static_cast<int>(turn / 2 % 3);
      c.policy = {.checkpointing = kPolicies[turn % 3], .delay_weight_gradients = turn % 4 == 3};
      c.tied = turn % 3 != 1;
      c.micro_batches = turn / 2 % 2 == 0 ? 3 : 1;
      out.push_back(c);
    }
  }
  return with_states(out);
}
INSTANTIATE_TEST_SUITE_P(Meshes, HostWeights, ::testing::ValuesIn(every_mesh()), CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HostWeights);

// A tied embedding, whose flat two stages have: each writes its own weights back.
std::vector<HostCase> stages() {
  const int world = the_world->size();
  if (world != 2 && world != 4) return {};
  MeshCase c{.mesh = {.shard = world / 2},
             .partition = {.stages = 2, .ends = {1, 2}},
             .schedule = testing::Schedule::one_forward_one_backward,
             .micro_batches = 3,
             .compute = DType::bf16};
  std::vector<HostCase> out{{c, State::host}};
  c.micro_batches = 1;
  c.compute = DType::f32;
  c.shard_policy = ShardPolicy::optimizer;
  out.push_back({c, State::device});
  return out;
}
INSTANTIATE_TEST_SUITE_P(Stages, HostWeights, ::testing::ValuesIn(stages()), CaseName());

struct OptimizerCase {
  std::string optimizer;
  MeshCase on;
  bool all = true;  // the flats on the host; else some of them, and the state of some others

  std::string name() const { return testing::joined(optimizer, on.name(), all ? "all_flats" : "some_flats"); }
  friend void PrintTo(const OptimizerCase& c, std::ostream* out) { *out << c.name(); }
};

using HostWeightsOfOptimizers = CaseTest<OptimizerCase>;

// Of several phases, with slots of other shapes and dtypes. Where some flats are on the host, some have their state
// there, too.
TEST_P(HostWeightsOfOptimizers, ChangeNothing) {
  const OptimizerCase& c = GetParam();
  const auto expect_no_change = [&](const models::Model& model, std::shared_ptr<const optim::Optimizer> optimizer) {
    plan::LayoutChoices layout = clipped_layout(c.on, model);
    layout.optimizer = std::move(optimizer);
    const Trained resident = train(model, layout, 1);
    put_on_host(layout, model, State::host, c.all);
    expect_same_bits(train(model, layout, 1), resident);
  };
  if (c.optimizer == "muon") {
    expect_no_change(models::Model(testing::toy_description(), testing::Muon::spec_of),
                     std::make_shared<testing::Muon>());
  } else if (c.optimizer == "eight_bits") {
    expect_no_change(models::Model(testing::toy_of_nf4_blocks(), testing::EightBits::spec_of),
                     std::make_shared<testing::EightBits>());
  } else {
    expect_no_change(models::Model(testing::toy_description()), std::make_shared<testing::ExchangingAdamW>());
  }
}

std::vector<OptimizerCase> optimizers() {
  std::vector<OptimizerCase> out;
  if (the_world->size() > 4) return out;  // long on eight ranks
  const std::vector<MeshCase> meshes = sharded_meshes();
  for (const char* const optimizer : {"exchanging_adamw", "muon", "eight_bits"}) {
    const std::size_t turn = out.size();
    MeshCase c = meshes[turn % meshes.size()];
    c.compute = turn % 2 == 0 ? DType::bf16 : DType::f32;
    c.shard_policy = turn % 2 == 0 ? ShardPolicy::parameters : ShardPolicy::optimizer;
    out.push_back({optimizer, c, turn == 1});
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Optimizers, HostWeightsOfOptimizers, ::testing::ValuesIn(optimizers()), CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HostWeightsOfOptimizers);

using ExactHostWeights = CaseTest<HostCase>;

// Weights with scales are quantized on the device after the update and written back after that: in float32. On the last
// mesh, whose weights are sharded, backward reads the transposes.
TEST_P(ExactHostWeights, ChangeNothing) {
  const auto& [c, state] = GetParam();
  const bool transposed = c.shard_policy == ShardPolicy::parameters;
  const models::Model model = testing::exact_model(true, transposed, true);
  plan::LayoutChoices layout = testing::exact_layout(model, c.mesh);
  layout.shard_policy = c.shard_policy;
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
  static std::map<std::string, std::vector<Tensors>> references;
  std::vector<Tensors>& resident = references[c.name()];
  if (resident.empty()) {
    resident = states_of();
    EXPECT_FALSE(resident[0] == resident[1]);
  }
  put_on_host(layout, model, state);
  EXPECT_TRUE(states_of() == resident);
}

// The first mesh with one sharding and the last with the other, with the state on the device and on the host.
std::vector<HostCase> two_meshes(ShardPolicy of_first, ShardPolicy of_last) {
  std::vector<HostCase> out;
  if (the_world->size() > 4) return out;  // long on eight ranks
  MeshCase first = sharded_meshes().front(), last = sharded_meshes().back();
  first.shard_policy = of_first;
  last.shard_policy = of_last;
  for (MeshCase c : {first, last}) {
    c.compute = DType::f32;
    for (const State state : {State::device, State::host}) out.push_back({c, state});
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Meshes, ExactHostWeights,
                         ::testing::ValuesIn(two_meshes(ShardPolicy::optimizer, ShardPolicy::parameters)), CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ExactHostWeights);

using Fp8HostWeights = CaseTest<HostCase>;

// The same in E4M3.
TEST_P(Fp8HostWeights, ChangeNothing) {
  const auto& [c, state] = GetParam();
  const models::Model fp8(testing::toy_description(false),
                          nn::with_fp8_weights(nn::common_domain, [](int) { return true; }));
  plan::LayoutChoices layout = clipped_layout(c, fp8);
  plan::set_formats(layout, fp8, {.saturation_limit = 1});
  static std::map<std::string, Trained> references;
  Trained& resident = references[c.name()];
  if (resident.losses.empty()) resident = train(fp8, layout, 1);
  put_on_host(layout, fp8, state);
  const Trained trained = train(fp8, layout, 1, [](engine::Session& session) {
    for (int f = 0; f < session.state().flats(); ++f) {
      const step::FlatState& flat = session.state().flat(f);
      EXPECT_TRUE(flat.streamed);
      EXPECT_EQ(flat.quantized_after_updates(), flat.compute.dtype() == DType::f8e4m3);
    }
  });
  expect_same_bits(trained, resident);
}
INSTANTIATE_TEST_SUITE_P(Meshes, Fp8HostWeights,
                         ::testing::ValuesIn(two_meshes(ShardPolicy::parameters, ShardPolicy::optimizer)), CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Fp8HostWeights);

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

struct CheckpointCase {
  State state;
  bool loads;  // the run with weights on the host; else it saves

  std::string name() const { return testing::joined(name_of(state), loads ? "loads" : "saves"); }
  friend void PrintTo(const CheckpointCase& c, std::ostream* out) { *out << c.name(); }
};

using HostWeightsCheckpoint = CaseTest<CheckpointCase>;

// What is saved with weights in one place continues in the other to the same bits.
TEST_P(HostWeightsCheckpoint, ContinuesInTheOtherPlace) {
  const auto& [state, loads] = GetParam();
  const models::Model model(testing::toy_description());
  const TemporaryFolder own;
  const std::string root = the_world->all_gather_strings(own.path("checkpoints")).front();
  const plan::LayoutChoices resident = clipped_layout(testing::last_mesh_in_bf16(), model);
  static std::vector<double> expected;
  static Tensors end;
  if (expected.empty()) {
    WorldRun straight(model, resident);
    for (const std::int64_t which : {0, 1, 2, 3}) expected.push_back(straight.loss(which));
    end = assembled(straight.session());
  }
  plan::LayoutChoices layout = resident;
  put_on_host(layout, model, state);
  WorldRun saving(model, loads ? resident : layout);
  for (const std::int64_t which : {0, 1}) saving.enqueue(which);
  train::save(saving.session(), the_world, {.root = root, .keep = 6}, {.step = 1, .recipe = "{}", .config = "{}"});
  WorldRun loading(model, loads ? layout : resident);
  checkpoint::Checkpoint checkpoint = checkpoint::Checkpoint::open(cat(root, "/", checkpoint::step_name(1)));
  engine::load(loading.session(), checkpoint);
  loading.session().set_progress({.step = 2});
  EXPECT_TRUE(assembled(loading.session()) == assembled(saving.session()));
  for (const std::int64_t which : {2, 3}) {
    EXPECT_EQ(loading.loss(which), expected[static_cast<std::size_t>(which)]);
  }
  EXPECT_TRUE(assembled(loading.session()) == end);
}

std::vector<CheckpointCase> checkpoints() {
  std::vector<CheckpointCase> out;
  for (const State state : kStates) {
    for (const bool loads : {false, true}) out.push_back({state, loads});
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Places, HostWeightsCheckpoint, ::testing::ValuesIn(checkpoints()), CaseName());

using HostWeightsSnapshot = CaseTest<HostCase>;

TEST_P(HostWeightsSnapshot, HasThoseOfItsStep) {
  const models::Model model(testing::toy_description());
  plan::LayoutChoices layout = clipped_layout(GetParam().on, model);
  put_on_host(layout, model, GetParam().state);
  WorldRun run(model, layout);
  testing::expect_snapshot_of_its_step(run);
}

std::vector<HostCase> first_mesh_in_f32() {
  MeshCase c = sharded_meshes().front();
  c.compute = DType::f32;
  return with_states({c});
}
INSTANTIATE_TEST_SUITE_P(States, HostWeightsSnapshot, ::testing::ValuesIn(first_mesh_in_f32()), CaseName());

using HostWeightsInOtherSteps = CaseTest<HostCase>;

// Steps of other kinds load what the last update has written back.
TEST_P(HostWeightsInOtherSteps, AreTheUpdatedOnes) {
  const models::Model model(testing::toy_description());
  plan::LayoutChoices layout = clipped_layout(GetParam().on, model);
  const auto losses_of = [&] {
    WorldRun run(model, layout, {step::Purpose::train, step::Purpose::gradient_norms, step::Purpose::loss});
    std::vector<double> losses;
    for (const std::int64_t which : {0, 1}) {
      losses.push_back(run.loss(which));
      losses.push_back(run.loss(2, step::Purpose::gradient_norms));
      losses.push_back(run.loss(3, step::Purpose::loss));
    }
    return losses;
  };
  static std::vector<double> expected;
  if (expected.empty()) {
    expected = losses_of();
    EXPECT_NE(expected[2], expected[5]);
  }
  put_on_host(layout, model, GetParam().state);
  EXPECT_EQ(losses_of(), expected);
}
INSTANTIATE_TEST_SUITE_P(States, HostWeightsInOtherSteps,
                         ::testing::ValuesIn(with_states({testing::last_mesh_in_bf16()})), CaseName());

struct FolderCase {
  State state;
  bool adapters;

  std::string name() const { return testing::joined(adapters ? "adapters" : "all_weights", name_of(state)); }
  friend void PrintTo(const FolderCase& c, std::ostream* out) { *out << c.name(); }
};

using HostWeightsOfFolder = CaseTest<FolderCase>;

// Weights of a folder, and initial values of the adapters that it does not have; the frozen base is on the host by
// either name.
TEST_P(HostWeightsOfFolder, AreLoaded) {
  const auto& [state, adapters] = GetParam();
  Recipe recipe;
  if (adapters) recipe.adapter = {.kind = AdapterKind::lora, .rank = 2, .targets = {"q_proj"}};
  Problems problems;
  engine::OpenModel open = engine::open_model(golden_folder + "/tied", false, problems, engine::changes_of(recipe));
  ASSERT_EQ(problems.lines(), "");
  plan::LayoutChoices layout = testing::toy_layout({.mesh = {.shard = the_world->size()}}, *open.model);
  layout.compute = DType::bf16;
  const auto loaded = [&] {
    WorldRun run(*open.model, layout);
    engine::load_weights(run.session(), open, 7);
    const Tensors before = assembled(run.session());
    const double loss = run.loss(0);
    return std::tuple(before, loss, assembled(run.session()), run.session().state().host_bytes());
  };
  static std::map<bool, std::tuple<Tensors, double, Tensors, std::int64_t>> references;
  if (!references.contains(adapters)) references.emplace(adapters, loaded());
  const auto& device = references.at(adapters);
  put_on_host(layout, *open.model, state);
  layout.host.weights.assign(open.model->flats().size(), true);
  const auto host = loaded();
  EXPECT_TRUE(std::get<0>(host) == std::get<0>(device));
  EXPECT_EQ(std::get<1>(host), std::get<1>(device));
  EXPECT_TRUE(std::get<2>(host) == std::get<2>(device));
  EXPECT_GT(std::get<3>(host), 0);
}

std::vector<FolderCase> folders() {
  std::vector<FolderCase> out;
  for (const bool adapters : {false, true}) {
    for (const State state : kStates) out.push_back({state, adapters});
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Folders, HostWeightsOfFolder, ::testing::ValuesIn(folders()), CaseName());

}  // namespace host_weights_test
}  // namespace hawser
