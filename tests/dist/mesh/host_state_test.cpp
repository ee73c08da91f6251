// Master weights and slots in host memory: not a bit of the training, of its checkpoints or of its snapshots differs
// from those of state on the device.
#include "base/testing/temporary_folder.h"
#include "base/text.h"
#include "checkpoint/root.h"
#include "engine/does_not_fit.h"
#include "engine/load_state.h"
#include "engine/model_changes.h"
#include "engine/open_model.h"
#include "exact_layers.h"
#include "plan/pipeline_form.h"
#include "snapshot_case.h"
#include "support/counting_device.h"
#include "support/exchanging_adamw.h"
#include "toy_muon.h"
#include "train/saver.h"

namespace hawser {
namespace host_state_test {

using testing::assembled;
using testing::CaseName;
using testing::CaseTest;
using testing::clipped_layout;
using testing::MeshCase;
using testing::same_bits;
using testing::sharded_meshes;
using testing::Tensors;
using testing::Trained;

enum class Place { device, some_on_host, host };

std::string name_of(Place place) {
  constexpr const char* kNames[] = {"on_the_device", "some_on_the_host", "on_the_host"};
  return kNames[static_cast<int>(place)];
}

// Every second one of the trainable flats, or all.
void put(plan::LayoutChoices& layout, const models::Model& model, Place place) {
  layout.host.state.clear();
  if (place == Place::device) return;
  int number = 0;
  for (const nn::Flat& flat : model.flats()) {
    const bool host = flat.spec().trainable && (place == Place::host || number % 2 == 0);
    if (flat.spec().trainable) ++number;
    layout.host.state.push_back(host);
  }
}

// A session of the world whose streams have random delays; every step is compared with its plan, and guarded.
class GuardedRun {
 public:
  GuardedRun(const models::Model& model, plan::LayoutChoices layout, std::int64_t micro_batches = 1,
             const std::vector<step::Purpose>& purposes = {step::Purpose::train})
      : layout_(std::move(layout)),
        mesh_(rank_mesh(plan::derive(layout_, model).mesh)),
        device_(rank_device({.random_delay_s = 1e-4, .delay_seed = 5})),
        steps_(model, layout_, mesh_->coordinate(),
               layout_.batch_sizes.sequences * layout_.data_ranks() * micro_batches),
        session_(model, plan::derive(layout_, model), *device_, *mesh_, purposes, std::nullopt,
                 {.replay = true, .guard = kRankDevice == DeviceKind::cpu}) {
    session_.initialise(3);
  }
  step::StepOutput enqueue(std::int64_t which, bool skip = false) {
    step::StepInput input = steps_.input(which);
    input.record.learning_rate = 0.01f;
    input.skip = skip;
    return session_.enqueue(step::Purpose::train, input);
  }
  void step(std::int64_t which, Trained& trained, bool skip = false) {
    const step::StepOutput output = enqueue(which, skip);
    session_.synchronize();
    trained.losses.push_back(output.result->loss_sum.value());
    trained.clips.push_back(output.result->clip);
    EXPECT_EQ(output.result->skipped() != step::Skip::none, skip);
    if (!skip) {
      EXPECT_LT(output.result->clip, 1.0f) << "clipping is not active";
    }
  }
  // The outputs of a step without updates.
  step::StepOutput look(step::Purpose purpose, std::int64_t which) {
    step::StepOutput output = session_.enqueue(purpose, steps_.input(which));
    session_.synchronize();
    return output;
  }
  engine::Session& session() { return session_; }

 private:
  plan::LayoutChoices layout_;
  std::shared_ptr<comm::Mesh> mesh_;
  std::shared_ptr<Device> device_;
  testing::ToySteps steps_;
  engine::Session session_;
};

struct HostCase {
  std::string optimizer;
  MeshCase on;
  Place place = Place::device;

  std::string name() const { return testing::joined(optimizer, on.name(), name_of(place)); }
  friend void PrintTo(const HostCase& c, std::ostream* out) { *out << c.name(); }
};

std::shared_ptr<const optim::Optimizer> optimizer_of(const HostCase& c) {
  if (c.optimizer == "adamw") return optim::make_adamw({.weight_decay = 0.1});
  if (c.optimizer == "exchanging_adamw") return std::make_shared<testing::ExchangingAdamW>();
  if (c.optimizer == "adafactor") return std::make_shared<testing::Adafactor>();
  if (c.optimizer == "lamb") return std::make_shared<testing::Lamb>();
  if (c.optimizer == "muon") return std::make_shared<testing::Muon>();
  if (c.optimizer == "eight_bits") return std::make_shared<testing::EightBits>();
  return testing::toy_adamw();
}

models::Model model_of(const HostCase& c) {
  if (c.optimizer == "adafactor") return models::Model(testing::toy_description(), testing::by_rank);
  if (c.optimizer == "muon") return models::Model(testing::toy_description(), testing::Muon::spec_of);
  if (c.optimizer == "eight_bits") return models::Model(testing::toy_of_nf4_blocks(), testing::EightBits::spec_of);
  return models::Model(testing::toy_description(c.on.tied));
}

struct TrainedState {
  Trained trained;
  std::int64_t device_bytes = 0, host_bytes = 0;  // of the state
};

// Two steps that update, and between them one that does not.
TrainedState trained(const models::Model& model, const plan::LayoutChoices& layout, std::int64_t micro_batches) {
  GuardedRun run(model, layout, micro_batches);
  TrainedState out;
  for (const std::int64_t which : {0, 1, 2}) run.step(which, out.trained, which == 1);
  out.trained.after = assembled(run.session());
  out.device_bytes = run.session().state().bytes();
  out.host_bytes = run.session().state().host_bytes();
  EXPECT_EQ(run.session().plan(step::Purpose::train).host_state_bytes, out.host_bytes);
  return out;
}

void expect_no_change(const HostCase& c) {
  const models::Model model = model_of(c);
  plan::LayoutChoices layout = clipped_layout(c.on, model);
  layout.optimizer = optimizer_of(c);
  static std::map<std::string, TrainedState> references;
  TrainedState& device = references[testing::joined(c.optimizer, c.on.name())];
  if (device.trained.losses.empty()) {
    put(layout, model, Place::device);
    device = trained(model, layout, c.on.micro_batches);
    EXPECT_EQ(device.host_bytes, 0);
  }
  put(layout, model, c.place);
  const TrainedState host = trained(model, layout, c.on.micro_batches);
  testing::expect_same_bits(host.trained, device.trained);
  EXPECT_GT(host.host_bytes, 0);
  EXPECT_EQ(host.device_bytes + host.host_bytes, device.device_bytes);
}

using HostState = CaseTest<HostCase>;

TEST_P(HostState, ChangesNothing) {
  expect_no_change(GetParam());
}

// Each optimizer; AdamW with all combinations of micro-batches and flats on the host. The meshes of the world, dtypes,
// and sharding of the weights take turns, and of other optimizers the combinations too, unless `all`.
std::vector<HostCase> combinations(bool all) {
  std::vector<HostCase> out;
  const std::vector<std::string> optimizers = {"adamw", "exchanging_adamw", "adafactor", "lamb", "muon", "eight_bits"};
  const std::size_t count = kRankDevice == DeviceKind::cpu ? optimizers.size() : 2;  // the others compute on processors
  for (std::size_t t = 0; t < count; ++t) {
    const bool every = all || t == 0;
    const std::vector<MeshCase> meshes = sharded_meshes();
    for (std::size_t turn = t; turn < t + (every ? 2 : 1); ++turn) {
      const Place one = turn % 3 == 0 ? Place::some_on_host : Place::host;
      const std::vector<Place> places = every ? std::vector{Place::some_on_host, Place::host} : std::vector{one};
      for (std::size_t m = 0; m < meshes.size(); ++m) {
        if (!all && m != turn % meshes.size()) continue;
        for (const DType compute : {DType::f32, DType::bf16}) {
          if (!all && (compute == DType::bf16) != (turn % 3 != 1)) continue;
          MeshCase c = meshes[m];
          c.micro_batches = turn % 2 == 0 ? 3 : 1;
          c.compute = compute;
          c.shard_policy = turn / 2 % 2 == 0 ? ShardPolicy::parameters : ShardPolicy::optimizer;
          c.tied = optimizers[t] != "lamb";
          for (const Place place : places) out.push_back({optimizers[t], c, place});
        }
      }
    }
  }
  return out;
}
std::vector<HostCase> in_turn() {
  return the_world->size() > 4 ? std::vector<HostCase>() : combinations(false);  // fewer ranks are enough
}
INSTANTIATE_TEST_SUITE_P(InTurn, HostState, ::testing::ValuesIn(in_turn()), CaseName());

using FullHostState = CaseTest<HostCase>;

TEST_P(FullHostState, ChangesNothing) {
  expect_no_change(GetParam());
}
INSTANTIATE_TEST_SUITE_P(AllCombinations, FullHostState, ::testing::ValuesIn(combinations(true)), CaseName());

// A flat of two stages; each stage copies the state of its own flats.
std::vector<HostCase> stages() {
  if (the_world->size() == 1) return {};
  const MeshCase c{.mesh = {.shard = the_world->size() / 2},
                   .partition = {.stages = 2, .ends = {1, 2}},
                   .schedule = testing::Schedule::one_forward_one_backward,
                   .micro_batches = 3,
                   .compute = DType::bf16};
  return {{"toy_adamw", c, Place::host}};
}
INSTANTIATE_TEST_SUITE_P(Stages, HostState, ::testing::ValuesIn(stages()), CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HostState);

struct QuantizedCase {
  MeshCase on;
  bool transposed = false;
  Place place = Place::device;

  std::string name() const {
    return testing::joined(on.name(), testing::name_if(transposed, "transposed"), name_of(place));
  }
  friend void PrintTo(const QuantizedCase& c, std::ostream* out) { *out << c.name(); }
};

using HostStateOfQuantizedWeights = CaseTest<QuantizedCase>;

// Scales are measured on the device before the weights return, and quantizing copies the weights once more.
TEST_P(HostStateOfQuantizedWeights, ChangesNothing) {
  const QuantizedCase& c = GetParam();
  const models::Model model = testing::exact_model(true, c.transposed, true);
  const auto mesh = rank_mesh(c.on.mesh);
  std::vector<Tensors> states;
  for (const Place place : {Place::device, c.place}) {
    plan::LayoutChoices layout = testing::exact_layout(model, c.on.mesh);
    layout.shard_policy = c.on.shard_policy;
    put(layout, model, place);
    testing::ExactRun run(model, layout, *mesh, 2LL * the_world->size());
    testing::write_exact(run.session());
    for (int step = 0; step < 3; ++step) run.step(step);
    states.push_back(assembled(run.session()));
    run.session().parameters_changed();  // measures them outside of a step
    EXPECT_TRUE(same_bits(assembled(run.session()), states.back()));
    EXPECT_EQ(run.session().state().host_bytes() > 0, place != Place::device);
  }
  EXPECT_TRUE(same_bits(states.back(), states.front()));
}

std::vector<QuantizedCase> quantized() {
  if (the_world->size() > 4) return {};  // fewer ranks are enough
  return {{{.mesh = sharded_meshes().front().mesh}, false, Place::host},
          {{.mesh = sharded_meshes().back().mesh, .shard_policy = ShardPolicy::optimizer}, true, Place::some_on_host}};
}
INSTANTIATE_TEST_SUITE_P(Meshes, HostStateOfQuantizedWeights, ::testing::ValuesIn(quantized()), CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HostStateOfQuantizedWeights);

struct FromTo {
  Place from, to;

  std::string name() const { return testing::joined(name_of(from), "to", name_of(to)); }
  friend void PrintTo(const FromTo& c, std::ostream* out) { *out << c.name(); }
};

using HostStateCheckpoint = CaseTest<FromTo>;

// What one place has saved, the other loads and continues to the same bits.
TEST_P(HostStateCheckpoint, ContinuesInTheOtherPlace) {
  const models::Model model(testing::toy_description());
  const TemporaryFolder own;
  const std::string root = the_world->all_gather_strings(own.path("checkpoints")).front();
  plan::LayoutChoices layout = clipped_layout(testing::last_mesh_in_bf16(), model);
  static Trained expected;
  if (expected.losses.empty()) {
    GuardedRun straight(model, layout);
    for (const std::int64_t which : {0, 1, 2, 3}) straight.step(which, expected);
    expected.after = assembled(straight.session());
  }
  Trained trained;
  put(layout, model, GetParam().from);
  GuardedRun saving(model, layout);
  for (const std::int64_t which : {0, 1}) saving.step(which, trained);
  train::save(saving.session(), the_world, {.root = root, .keep = 3}, {.step = 1, .recipe = "{}", .config = "{}"});
  put(layout, model, GetParam().to);
  GuardedRun loading(model, layout);
  checkpoint::Checkpoint checkpoint = checkpoint::Checkpoint::open(cat(root, "/", checkpoint::step_name(1)));
  engine::load(loading.session(), checkpoint);
  loading.session().set_progress({.step = 2});
  EXPECT_TRUE(same_bits(assembled(loading.session()), assembled(saving.session())));
  for (const std::int64_t which : {2, 3}) loading.step(which, trained);
  trained.after = assembled(loading.session());
  testing::expect_same_bits(trained, expected);
}
INSTANTIATE_TEST_SUITE_P(Places, HostStateCheckpoint,
                         ::testing::Values(FromTo{Place::device, Place::host}, FromTo{Place::host, Place::device}),
                         CaseName());

TEST(HostState, ASnapshotHasTheStateOfItsStep) {
  const models::Model model(testing::toy_description());
  MeshCase c = sharded_meshes().front();
  c.compute = DType::bf16;
  plan::LayoutChoices layout = clipped_layout(c, model);
  put(layout, model, Place::some_on_host);
  GuardedRun run(model, layout);
  testing::expect_snapshot_of_its_step(run);
}

// Steps without updates read the rounded weights, which are on the device.
TEST(HostState, OtherStepsReadTheUpdatedWeights) {
  const models::Model model(testing::toy_description());
  plan::LayoutChoices layout = clipped_layout(testing::last_mesh_in_bf16(), model);
  std::vector<Trained> all;
  for (const Place place : {Place::device, Place::host}) {
    put(layout, model, place);
    GuardedRun run(model, layout, 1, {step::Purpose::train, step::Purpose::gradient_norms, step::Purpose::loss});
    Trained& trained = all.emplace_back();
    for (const std::int64_t which : {0, 1}) {
      run.step(which, trained);
      const step::StepOutput norms = run.look(step::Purpose::gradient_norms, 2);
      trained.after[cat("norms ", which)] = *norms.parameter_norms;
      trained.losses.push_back(norms.result->loss_sum.value());
      trained.losses.push_back(run.look(step::Purpose::loss, 3).result->loss_sum.value());
    }
  }
  EXPECT_NE(all[0].losses[2], all[0].losses[5]);
  testing::expect_same_bits(all[1], all[0]);
}

struct FolderCase {
  bool adapters = false;

  std::string name() const { return adapters ? "adapters" : "all_weights"; }
  friend void PrintTo(const FolderCase& c, std::ostream* out) { *out << c.name(); }
};

using HostStateOfFolder = CaseTest<FolderCase>;

// Weights of a folder, and initial values of the adapters that it does not have.
TEST_P(HostStateOfFolder, HasItsWeightsAndInitialValues) {
  const std::string folder = golden_folder + "/tied";
  Recipe recipe;
  if (GetParam().adapters) recipe.adapter = {.kind = AdapterKind::lora, .rank = 2, .targets = {"q_proj"}};
  Problems problems;
  engine::OpenModel open = engine::open_model(folder, false, problems, engine::changes_of(recipe));
  ASSERT_EQ(problems.lines(), "");
  plan::LayoutChoices layout = testing::toy_layout({.mesh = {.shard = the_world->size()}}, *open.model);
  layout.compute = DType::bf16;
  const auto loaded = [&](Place place) {
    put(layout, *open.model, place);
    GuardedRun run(*open.model, layout);
    engine::load_weights(run.session(), open, 7);
    EXPECT_EQ(run.session().state().host_bytes() > 0, place == Place::host);
    const Tensors weights = assembled(run.session());
    run.enqueue(0);  // reads the rounded weights
    return std::pair(weights, assembled(run.session()));
  };
  const auto device = loaded(Place::device), host = loaded(Place::host);
  EXPECT_TRUE(same_bits(host.first, device.first));
  EXPECT_TRUE(same_bits(host.second, device.second));
}
INSTANTIATE_TEST_SUITE_P(Folders, HostStateOfFolder, ::testing::Values(FolderCase{false}, FolderCase{true}),
                         CaseName());

// Each rank alone has enough host memory; all of this machine together have a byte too little. No rank reserves any.
TEST(HostState, IsRejectedIfTheRanksOfTheMachinePinTooMuch) {
  const models::Model model(testing::toy_description());
  plan::LayoutChoices layout = testing::toy_layout({.mesh = {.shard = the_world->size()}}, model);
  put(layout, model, Place::host);
  const auto mesh = rank_mesh(layout.mesh);
  const auto cpu = rank_device();
  testing::CountingDevice device(*cpu);
  const auto open = [&](std::int64_t host) {
    engine::Session(model, plan::derive(layout, model), device, *mesh, {step::Purpose::train}, std::nullopt,
                    {.host_capacity = Bytes(host)});
  };
  const std::int64_t rank =
      plan::plan_rank(model, plan::derive(layout, model), step::Purpose::train, the_world->rank().value())
          .pinned_bytes();
  const std::int64_t all = rank * the_world->size();
  try {
    open(all - 1);
    ADD_FAILURE() << "accepted";
  } catch (const engine::DoesNotFit& error) {
    EXPECT_NE(std::string(error.what()).find(cat(" for the ", plural(the_world->size(), "rank"), " on ")),
              std::string::npos)
        << error.what();
  }
  EXPECT_EQ(device.host, 0);
  open(all);
  EXPECT_EQ(device.host, rank);
}

}  // namespace host_state_test
}  // namespace hawser
