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
#include "snapshot_case.h"
#include "support/counting_device.h"
#include "support/exchanging_adamw.h"
#include "support/pipeline.h"
#include "toy_muon.h"
#include "train/saver.h"

namespace hawser {
namespace host_state_test {

using testing::assembled;
using testing::meshes;
using testing::same_bits;
using testing::Tensors;
using testing::text_of;

enum class Place { device, some_on_host, host, some_updated_on_host, updated_on_host };

const char* text_of(Place place) {
  switch (place) {
    case Place::device:
      return "on the device";
    case Place::some_on_host:
      return "some on the host";
    case Place::host:
      return "all on the host";
    case Place::some_updated_on_host:
      return "some updated on the host";
    case Place::updated_on_host:
      return "all updated on the host";
  }
  return "?";
}

// Every second one of the trainable flats, or all.
void put(plan::LayoutChoices& layout, const models::Model& model, Place place) {
  layout.host.state.clear();
  layout.host.updates = place == Place::some_updated_on_host || place == Place::updated_on_host;
  if (place == Place::device) return;
  int number = 0;
  for (const nn::Flat& flat : model.flats()) {
    const bool all = place == Place::host || place == Place::updated_on_host;
    const bool host = flat.spec().trainable && (all || number % 2 == 0);
    if (flat.spec().trainable) ++number;
    layout.host.state.push_back(host);
  }
}

struct Outcome {
  std::vector<double> losses;
  std::vector<float> clips;
  Tensors states;
  std::int64_t device_bytes = 0, host_bytes = 0;  // of the state
};

void expect_same(const Outcome& a, const Outcome& b, const std::string& text) {
  EXPECT_EQ(a.losses, b.losses) << text;
  EXPECT_TRUE(same_bits(a.clips, b.clips)) << text;
  EXPECT_TRUE(same_bits(a.states, b.states)) << text;
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
  void step(std::int64_t which, Outcome& outcome, bool skip = false) {
    const step::StepOutput output = enqueue(which, skip);
    session_.synchronize();
    outcome.losses.push_back(output.result->loss_sum.value());
    outcome.clips.push_back(output.result->clip);
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

// Two steps that update, and between them one that does not.
Outcome trained(const models::Model& model, const plan::LayoutChoices& layout, std::int64_t micro_batches) {
  GuardedRun run(model, layout, micro_batches);
  Outcome outcome;
  for (const std::int64_t which : {0, 1, 2}) run.step(which, outcome, which == 1);
  outcome.states = assembled(run.session());
  outcome.device_bytes = run.session().state().bytes();
  outcome.host_bytes = run.session().state().host_bytes();
  EXPECT_EQ(run.session().plan(step::Purpose::train).host_state_bytes, outcome.host_bytes);
  return outcome;
}

void expect_same_on_the_host(const models::Model& model, plan::LayoutChoices layout, std::int64_t micro_batches,
                             const std::vector<Place>& places, const std::string& name) {
  const Outcome device = trained(model, layout, micro_batches);
  EXPECT_EQ(device.host_bytes, 0);
  for (const Place place : places) {
    put(layout, model, place);
    const Outcome host = trained(model, layout, micro_batches);
    const std::string text = cat(name, ", ", text_of(layout), ", ", micro_batches, " micro-batches, ", text_of(place));
    expect_same(host, device, text);
    EXPECT_GT(host.host_bytes, 0) << text;
    EXPECT_EQ(host.device_bytes + host.host_bytes, device.device_bytes) << text;
  }
}

struct Toy {
  std::string name;
  const models::Model& model;
  std::shared_ptr<const optim::Optimizer> optimizer;
};

// Trains with each optimizer; AdamW with all combinations of micro-batches and flats on the host. The meshes of the
// world, dtypes, and sharding of the weights take turns, and of other optimizers the combinations too, unless `all`.
void expect_no_change(bool all) {
  const models::Model tied(testing::toy_description()), untied(testing::toy_description(false)),
      by_rank(testing::toy_description(), testing::by_rank), muon(testing::toy_description(), testing::Muon::spec_of),
      in_blocks(testing::toy_of_nf4_blocks(), testing::EightBits::spec_of);
  const std::vector<Toy> toys{{"AdamW", tied, optim::make_adamw({.weight_decay = 0.1})},
                              {"exchanging AdamW", tied, std::make_shared<testing::ExchangingAdamW>()},
                              {"Adafactor", by_rank, std::make_shared<testing::Adafactor>()},
                              {"LAMB", untied, std::make_shared<testing::Lamb>()},
                              {"Muon", muon, std::make_shared<testing::Muon>()},
                              {"8-bit moments", in_blocks, std::make_shared<testing::EightBits>()}};
  const std::size_t count = kRankDevice == DeviceKind::cpu ? toys.size() : 2;  // the others compute on processors
  for (std::size_t t = 0; t < count; ++t) {
    const bool every = all || t == 0;
    const std::vector<plan::LayoutChoices> layouts = meshes(toys[t].model);
    for (std::size_t turn = t; turn < t + (every ? 2 : 1); ++turn) {
      const std::int64_t micro_batches = turn % 2 == 0 ? 3 : 1;
      const Place one = turn % 3 == 0 ? Place::some_on_host : Place::host;
      const std::vector<Place> places = every ? std::vector{Place::some_on_host, Place::host} : std::vector{one};
      for (std::size_t m = 0; m < layouts.size(); ++m) {
        if (!all && m != turn % layouts.size()) continue;
        for (const DType compute : {DType::f32, DType::bf16}) {
          if (!all && (compute == DType::bf16) != (turn % 3 != 1)) continue;
          plan::LayoutChoices layout = layouts[m];
          layout.optimizer = toys[t].optimizer;
          layout.compute = compute;
          layout.shard_policy = turn / 2 % 2 == 0 ? ShardPolicy::parameters : ShardPolicy::optimizer;
          expect_same_on_the_host(toys[t].model, layout, micro_batches, places, toys[t].name);
        }
      }
    }
  }
}

TEST(HostState, ChangesNothing) {
  if (the_world->size() > 4) GTEST_SKIP() << "fewer ranks are enough";
  expect_no_change(false);
}
TEST(HostState, DISABLED_AllCombinationsChangeNothing) {
  expect_no_change(true);
}

// Float32 weights that layers read as they are stored are there twice.
std::int64_t copies_on_device(const models::Model& model, const plan::LayoutChoices& layout) {
  std::int64_t bytes = 0;
  for (std::size_t f = 0; layout.compute == DType::f32 && f < model.flats().size(); ++f) {
    if (!layout.host.state[f]) continue;
    bytes += round_up(4 * model.flats()[f].total(layout.parts()) / layout.parts(), Device::kAlignment);
  }
  return bytes;
}

// The host computes the updates of AdamW: its gradients, weights and moments have the bits of the device's.
TEST(HostState, UpdatesOnTheHostChangeNothing) {
  if (the_world->size() > 4) GTEST_SKIP() << "fewer ranks are enough";
  const models::Model tied(testing::toy_description()), untied(testing::toy_description(false));
  std::size_t turn = 0;
  for (plan::LayoutChoices layout : meshes(tied)) {
    for (const DType compute : {DType::f32, DType::bf16}) {
      const models::Model& model = turn % 3 == 0 ? untied : tied;
      layout.compute = compute;
      layout.optimizer = optim::make_adamw({.weight_decay = 0.1});
      layout.shard_policy = turn % 4 < 2 ? ShardPolicy::parameters : ShardPolicy::optimizer;
      const std::int64_t micro_batches = turn % 2 == 0 ? 3 : 1;
      put(layout, model, Place::device);
      const Outcome device = trained(model, layout, micro_batches);
      for (const Place place : {Place::some_updated_on_host, Place::updated_on_host}) {
        put(layout, model, place);
        const Outcome host = trained(model, layout, micro_batches);
        const std::string text = cat(text_of(layout), ", ", micro_batches, " micro-batches, ", text_of(place));
        expect_same(host, device, text);
        EXPECT_GT(host.host_bytes, 0) << text;
        EXPECT_EQ(host.device_bytes + host.host_bytes, device.device_bytes + copies_on_device(model, layout)) << text;
      }
      ++turn;
    }
  }
}

// The phases of these exchange on the device between them.
TEST(HostState, UpdatesOfSeveralPhasesOnTheHostAreRejected) {
  const models::Model model(testing::toy_description());
  plan::LayoutChoices layout = meshes(model).front();
  layout.optimizer = std::make_shared<testing::ExchangingAdamW>();
  put(layout, model, Place::updated_on_host);
  EXPECT_THROW(GuardedRun(model, layout), InternalError);
}

// A flat of two stages; each stage copies the state of its own flats.
TEST(HostState, OfStagesChangesNothing) {
  const int world = the_world->size();
  if (world == 1) GTEST_SKIP() << "needs two ranks or more";
  const models::Model model(testing::toy_description());
  plan::LayoutChoices layout = testing::toy_layout({.shard = world / 2}, model);
  layout.compute = DType::bf16;
  layout.partition = {.stages = 2, .ends = {1, 2}};
  layout.schedule.passes = testing::one_forward_one_backward_of(2);
  expect_same_on_the_host(model, layout, 3, {Place::host, Place::updated_on_host}, "two stages");
}

// Scales are measured on the device before the weights return, and quantizing copies the weights once more.
TEST(HostState, OfQuantizedWeightsChangesNothing) {
  if (the_world->size() > 4) GTEST_SKIP() << "fewer ranks are enough";
  for (const bool transposed : {false, true}) {
    const models::Model model = testing::exact_model(true, transposed, true);
    const comm::MeshSizes mesh = transposed ? meshes(model).back().mesh : meshes(model).front().mesh;
    plan::LayoutChoices layout = testing::exact_layout(model, mesh);
    layout.shard_policy = transposed ? ShardPolicy::optimizer : ShardPolicy::parameters;
    std::vector<Tensors> states;
    for (const Place place : {Place::device, transposed ? Place::some_on_host : Place::host}) {
      put(layout, model, place);
      const auto groups = rank_mesh(layout.mesh);
      testing::ExactRun run(model, layout, *groups, 2LL * the_world->size());
      testing::write_exact(run.session());
      for (int step = 0; step < 3; ++step) run.step(step);
      states.push_back(assembled(run.session()));
      run.session().parameters_changed();  // measures them outside of a step
      EXPECT_TRUE(same_bits(assembled(run.session()), states.back())) << text_of(place);
      EXPECT_EQ(run.session().state().host_bytes() > 0, place != Place::device);
    }
    EXPECT_TRUE(same_bits(states.back(), states.front())) << text_of(layout);
  }
}

// What one place has saved, the other loads and continues to the same bits.
TEST(HostState, LoadsWhatTheOtherPlaceHasSaved) {
  const models::Model model(testing::toy_description());
  const TemporaryFolder own;
  const std::string root = the_world->all_gather_strings(own.path("checkpoints")).front();
  plan::LayoutChoices layout = meshes(model).back();
  layout.compute = DType::bf16;
  Outcome expected;
  GuardedRun straight(model, layout);
  for (const std::int64_t which : {0, 1, 2, 3}) straight.step(which, expected);
  expected.states = assembled(straight.session());
  for (const Place from : {Place::device, Place::host, Place::updated_on_host}) {
    const int number = 1 + static_cast<int>(from);
    Outcome outcome;
    put(layout, model, from);
    GuardedRun saving(model, layout);
    for (const std::int64_t which : {0, 1}) saving.step(which, outcome);
    train::save(saving.session(), the_world, {.root = root, .keep = 3},
                {.step = number, .recipe = "{}", .config = "{}"});
    put(layout, model,
        from == Place::device ? Place::host
        : from == Place::host ? Place::updated_on_host
                              : Place::device);
    GuardedRun loading(model, layout);
    checkpoint::Checkpoint checkpoint = checkpoint::Checkpoint::open(cat(root, "/", checkpoint::step_name(number)));
    engine::load(loading.session(), checkpoint);
    loading.session().set_progress({.step = 2});
    EXPECT_TRUE(same_bits(assembled(loading.session()), assembled(saving.session()))) << text_of(from);
    for (const std::int64_t which : {2, 3}) loading.step(which, outcome);
    outcome.states = assembled(loading.session());
    expect_same(outcome, expected, text_of(from));
  }
}

TEST(HostState, ASnapshotHasTheStateOfItsStep) {
  const models::Model model(testing::toy_description());
  for (const Place place : {Place::some_on_host, Place::some_updated_on_host}) {
    plan::LayoutChoices layout = meshes(model).front();
    layout.compute = DType::bf16;
    put(layout, model, place);
    GuardedRun run(model, layout);
    testing::expect_snapshot_of_its_step(run, text_of(place));
  }
}

// Steps without updates read the rounded weights, which are on the device.
TEST(HostState, OtherStepsReadTheUpdatedWeights) {
  const models::Model model(testing::toy_description());
  plan::LayoutChoices layout = meshes(model).back();
  layout.compute = DType::bf16;
  std::vector<Outcome> outcomes;
  for (const Place place : {Place::device, Place::host}) {
    put(layout, model, place);
    GuardedRun run(model, layout, 1, {step::Purpose::train, step::Purpose::gradient_norms, step::Purpose::loss});
    Outcome& outcome = outcomes.emplace_back();
    for (const std::int64_t which : {0, 1}) {
      run.step(which, outcome);
      const step::StepOutput norms = run.look(step::Purpose::gradient_norms, 2);
      outcome.states[cat("norms ", which)] = *norms.parameter_norms;
      outcome.losses.push_back(norms.result->loss_sum.value());
      outcome.losses.push_back(run.look(step::Purpose::loss, 3).result->loss_sum.value());
    }
  }
  EXPECT_NE(outcomes[0].losses[2], outcomes[0].losses[5]);
  expect_same(outcomes[1], outcomes[0], text_of(layout));
}

// Weights of a folder, and initial values of the adapters that it does not have.
TEST(HostState, LoadsWeightsAndInitialValues) {
  const std::string folder = golden_folder + "/tied";
  for (const bool adapters : {false, true}) {
    Recipe recipe;
    if (adapters) recipe.adapter = {.kind = AdapterKind::lora, .rank = 2, .targets = {"q_proj"}};
    Problems problems;
    engine::OpenModel open = engine::open_model(folder, false, problems, engine::changes_of(recipe));
    ASSERT_EQ(problems.lines(), "");
    plan::LayoutChoices layout = testing::toy_layout({.shard = the_world->size()}, *open.model);
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
    EXPECT_TRUE(same_bits(host.first, device.first)) << adapters;
    EXPECT_TRUE(same_bits(host.second, device.second)) << adapters;
  }
}

// Each rank alone has enough host memory; all of this machine together have a byte too little. No rank reserves any.
TEST(HostState, IsRejectedIfTheRanksOfTheMachinePinTooMuch) {
  const models::Model model(testing::toy_description());
  plan::LayoutChoices layout = testing::toy_layout({.shard = the_world->size()}, model);
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
