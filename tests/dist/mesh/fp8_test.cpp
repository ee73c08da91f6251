// FP8 training on CPU ranks. The sums of the exact layers are exact, and scales are powers of two: every mesh, split
// into micro-batches and way to recompute has the bits of one rank. Models have a bound on what another mesh may
// change.
#include "base/testing/temporary_folder.h"
#include "checkpoint/root.h"
#include "engine/load_state.h"
#include "exact_layers.h"
#include "nn/precision/fp8_scaling.h"
#include "train/saver.h"

namespace hawser {
namespace {

using testing::assembled;
using testing::exact_layout;
using testing::ExactRun;
using testing::Tensors;
using testing::text_of;

constexpr int kSteps = 6;
const nn::Fp8Options kExact{.history = 4, .power_of_two = true};

std::int64_t whole_batch() {
  return 2LL * the_world->size();
}

models::Model fp8_model() {
  return testing::exact_model(true, true, true, true);
}

plan::Layout fp8_layout(const models::Model& model, const comm::MeshSizes& mesh) {
  plan::Layout layout = exact_layout(model, mesh);
  layout.quantizer = std::make_shared<nn::Fp8Scaling>(kExact);
  return layout;
}

Tensors without_head(Tensors all) {
  std::erase_if(all, [](const auto& entry) { return entry.first.find("lm_head") != std::string::npos; });
  return all;
}

Tensors trained(const models::Model& model, const plan::Layout& layout, comm::Mesh& mesh, bool whole) {
  ExactRun run(model, layout, mesh, whole_batch(), whole);
  testing::write_exact(run.session());
  for (int i = 0; i < kSteps; ++i) run.step(i);
  return without_head(whole ? assembled(run.session()) : testing::states_of(run.session()));
}

TEST(Fp8, EveryMeshAndSplitHasTheBitsOfOneRank) {
  const models::Model model = fp8_model();
  const auto self = comm::make_self_mesh();
  const Tensors one = trained(model, fp8_layout(model, {}), *self, false);
  int histories = 0;
  for (const auto& [name, values] : one) {
    if (!name.starts_with("quantization/amax_history/")) continue;
    EXPECT_EQ(values.size(), 4u);
    EXPECT_GT(values[0], 0) << name;
    ++histories;
  }
  EXPECT_EQ(histories, 2 * 2 * 2);  // of x and dy at two sites of two layers
  int i = the_world->size();
  for (const plan::Layout& of : testing::meshes(model)) {
    plan::Layout layout = fp8_layout(model, of.mesh);
    layout.accumulation = of.accumulation;
    layout.batch.sequences = i % 2 == 0 ? 1 : 2;
    layout.shard_policy = i % 3 == 0 ? ShardPolicy::optimizer : ShardPolicy::parameters;
    for (nn::SavePolicy& policy : layout.policies) {
      policy.checkpointing = i / 2 % 2 == 0 ? Checkpointing::full : Checkpointing::none;
      policy.delay_weight_gradients = i % 3 == 1;
    }
    layout.in_flight = i % 3 == 1 ? 2 : 1;
    ++i;
    const auto mesh = comm::make_mpi_mesh(*the_world, layout.mesh, 60.0);
    const Tensors many = trained(model, layout, *mesh, true);
    EXPECT_EQ(many.size(), one.size());
    for (const auto& [name, values] : one) EXPECT_TRUE(many.at(name) == values) << text_of(layout) << ": " << name;
  }
}

// A run that stops in the middle of a history and resumes on another mesh has the bits of one that did not stop.
TEST(Fp8, AResumedRunHasTheBitsOfOneThatDidNotStop) {
  const models::Model model = fp8_model();
  const auto self = comm::make_self_mesh();
  const Tensors expected = trained(model, fp8_layout(model, {}), *self, false);
  const TemporaryFolder own;
  const std::string root = the_world->all_gather_strings(own.path("checkpoints")).front();
  const std::vector<plan::Layout> meshes = testing::meshes(model);
  constexpr int kBefore = 2;
  {
    const plan::Layout layout = fp8_layout(model, meshes.front().mesh);
    const auto mesh = comm::make_mpi_mesh(*the_world, layout.mesh, 60.0);
    ExactRun run(model, layout, *mesh, whole_batch());
    testing::write_exact(run.session());
    for (int i = 0; i < kBefore; ++i) run.step(i);
    train::save(run.session(), the_world, {.root = root}, {.step = 1, .recipe = "{}", .config = "{}"});
  }
  checkpoint::Checkpoint checkpoint = checkpoint::Checkpoint::open(cat(root, "/", checkpoint::step_name(1)));
  const plan::Layout layout = fp8_layout(model, meshes.back().mesh);
  const auto mesh = comm::make_mpi_mesh(*the_world, layout.mesh, 60.0);
  ExactRun run(model, layout, *mesh, whole_batch());
  engine::load(run.session(), checkpoint);
  for (int i = kBefore; i < kSteps; ++i) run.step(i);
  const Tensors after = without_head(assembled(run.session()));
  for (const auto& [name, values] : expected) EXPECT_TRUE(after.at(name) == values) << name;
}

nn::Fp8Options guarded(float limit = 0.1f) {  // less than what saturates on each mesh, more than at first
  nn::Fp8Options options = kExact;
  options.saturation_limit = limit;
  options.max_replays = 8;  // a Linear that is no longer clipped may saturate the next one
  return options;
}

using TableValues = std::vector<std::vector<float>>;

TableValues values_of_tables(engine::Session& session) {
  TableValues all;
  for (const step::StateTable& table : session.state().tables()) all.push_back(testing::floats_of(table.view));
  return all;
}

// Runs whose inputs become 32 times larger between the second step and the third.
class GrowingRun {
 public:
  struct Replays {
    std::vector<std::int64_t> steps;  // that were replayed, once for each time
    float saturation = 0;             // of the first of them
    TableValues tables;               // after the last replay: of the step that then counted
  };
  static constexpr std::int64_t kGrows = 2;

  GrowingRun(const models::Model& model, const plan::Layout& layout, comm::Mesh& mesh, const nn::Fp8Options& options,
             bool whole)
      : run_(model, with(layout, options), mesh, whole_batch(), whole), whole_(whole) {
    testing::write_exact(run_.session());
    for (int i = 0; i < kGrows; ++i) EXPECT_EQ(run_.step(i).result->skipped(), step::Skip::none);
    testing::write_exact(run_.session(), 32);
  }
  void write_tables(const TableValues& values) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::ranges::copy(values[i], run_.session().state().tables()[i].view.data<float>());
    }
  }
  // The steps up to kSteps, with three in flight, as train/fit.h replays them.
  Replays go_on() { return go_on(kGrows, kSteps); }
  Replays go_on(std::int64_t begin, std::int64_t end) {
    Replays replays;
    while (begin < end) {
      const std::int64_t first = begin;
      std::vector<step::StepOutput> in_flight;
      for (std::int64_t i = first; i < std::min(first + 3, end); ++i) in_flight.push_back(run_.enqueue(i));
      run_.session().synchronize();
      std::int64_t which = first;
      for (const step::StepOutput& output : in_flight) {
        const std::int64_t again = output.progress->replay_step;
        const step::Skip reason = again < 0        ? step::Skip::none
                                  : again == which ? step::Skip::saturated
                                                   : step::Skip::replay;
        EXPECT_EQ(output.result->skipped(), reason);
        if (reason == step::Skip::none) ++begin;
        if (reason == step::Skip::saturated && replays.steps.empty()) replays.saturation = output.result->saturation;
        EXPECT_EQ(output.progress->step, begin);  // updates so far
        ++which;
      }
      if (in_flight.back().progress->replay_step < 0) continue;
      replays.steps.push_back(in_flight.back().progress->replay_step);
      replays.tables = values_of_tables(run_.session());
      EXPECT_LT(replays.steps.size(), 16u);
      if (replays.steps.size() == 16) return replays;
    }
    return replays;
  }
  Tensors states() { return without_head(whole_ ? assembled(run_.session()) : testing::states_of(run_.session())); }
  ExactRun& run() { return run_; }

 private:
  static plan::Layout with(plan::Layout layout, const nn::Fp8Options& options) {
    layout.quantizer = std::make_shared<nn::Fp8Scaling>(options);
    return layout;
  }
  ExactRun run_;
  bool whole_;
};

// A step that saturates is skipped, and so are those in flight after it; replayed, it has the bits of a run that had
// the new scales from its start. Every mesh and way to recompute agrees.
TEST(Fp8, ASaturatedStepIsReplayed) {
  const models::Model model = fp8_model();
  const auto self = comm::make_self_mesh();
  GrowingRun one(model, fp8_layout(model, {}), *self, guarded(), false);
  const GrowingRun::Replays replays = one.go_on();
  ASSERT_FALSE(replays.steps.empty());
  EXPECT_LT(replays.steps.size(), 8u);
  for (const std::int64_t step : replays.steps) EXPECT_EQ(step, GrowingRun::kGrows);
  EXPECT_GT(replays.saturation, 0.01f);
  EXPECT_LE(replays.saturation, 1);
  const Tensors expected = one.states();

  GrowingRun refreshed(model, fp8_layout(model, {}), *self, guarded(1), false);
  refreshed.write_tables(replays.tables);
  EXPECT_TRUE(refreshed.go_on().steps.empty());
  EXPECT_TRUE(refreshed.states() == expected);

  GrowingRun without(model, fp8_layout(model, {}), *self, guarded(1), false);
  EXPECT_TRUE(without.go_on().steps.empty());
  EXPECT_FALSE(without.states() == expected);

  int i = the_world->size();
  for (const plan::Layout& of : testing::meshes(model)) {
    plan::Layout layout = fp8_layout(model, of.mesh);
    layout.accumulation = of.accumulation;
    layout.batch.sequences = i % 2 == 0 ? 1 : 2;
    for (nn::SavePolicy& policy : layout.policies) {
      policy.checkpointing = i % 2 == 0 ? Checkpointing::full : Checkpointing::none;
      policy.delay_weight_gradients = i % 3 == 1;
    }
    ++i;
    const auto mesh = comm::make_mpi_mesh(*the_world, layout.mesh, 60.0);
    GrowingRun many(model, layout, *mesh, guarded(), true);
    EXPECT_EQ(many.go_on().steps, replays.steps) << text_of(layout);
    const Tensors states = many.states();
    for (const auto& [name, values] : expected)
      EXPECT_TRUE(states.at(name) == values) << text_of(layout) << ": " << name;
  }
}

// What a pass computes again is not counted again, and the micro-batches of a step count together.
TEST(Fp8, SaturatedElementsAreCountedOnce) {
  const models::Model model = fp8_model();
  const plan::Layout base = fp8_layout(model, testing::meshes(model).front().mesh);
  const auto mesh = comm::make_mpi_mesh(*the_world, base.mesh, 60.0);
  const auto records = [&](Checkpointing checkpointing, bool delayed) {
    plan::Layout layout = base;
    for (nn::SavePolicy& policy : layout.policies) {
      policy.checkpointing = checkpointing;
      policy.delay_weight_gradients = delayed;
    }
    GrowingRun run(model, layout, *mesh, guarded(), true);
    EXPECT_EQ(run.run().step(GrowingRun::kGrows).result->skipped(), step::Skip::saturated);
    std::vector<float> all = testing::floats_of(run.run().session().state().site_records());
    const plan::Layout& used = run.run().layout();
    EXPECT_EQ(all[all.size() / 3 * 2], static_cast<float>(used.bounds.rows * used.micro_batches * model.width()));
    return all;
  };
  const std::vector<float> once = records(Checkpointing::none, false);
  const std::size_t sites = once.size() / 3;
  for (std::size_t i = sites; i < 2 * sites; ++i) EXPECT_LE(once[i], once[i + sites]);
  EXPECT_GT(*std::max_element(once.begin() + static_cast<std::ptrdiff_t>(sites), once.end()), 0);
  EXPECT_EQ(records(Checkpointing::full, false), once);
  EXPECT_EQ(records(Checkpointing::full, true), once);
}

// A step is skipped on all ranks if the values of one are saturated.
TEST(Fp8, OneRankSaturatesForAll) {
  const models::Model model = fp8_model();
  for (const plan::Layout& of : testing::meshes(model)) {
    const plan::Layout layout = fp8_layout(model, of.mesh);
    const auto mesh = comm::make_mpi_mesh(*the_world, layout.mesh, 60.0);
    GrowingRun run(model, layout, *mesh, guarded(), true);
    testing::write_exact(run.run().session());
    if (the_world->rank().value() == the_world->size() - 1) {
      for (const step::StateTable& table : run.run().session().state().tables()) {
        if (table.name.starts_with("quantization/scale/")) *table.view.data<float>() = 0x1p-20f;
      }
    }
    const step::StepResult result = *run.run().step(GrowingRun::kGrows).result;
    EXPECT_EQ(result.skipped(), step::Skip::saturated) << text_of(layout);
    const std::string mine = cat(result.saturation, " of ", result.saturated_site);
    for (const std::string& theirs : the_world->all_gather_strings(mine)) EXPECT_EQ(theirs, mine) << text_of(layout);
  }
}

// After the last replay that is allowed, a step counts although it saturates.
TEST(Fp8, AStepIsReplayedAFewTimesOnly) {
  const models::Model model = fp8_model();
  nn::Fp8Options options = guarded();
  options.max_replays = 1;
  const plan::Layout layout = fp8_layout(model, testing::meshes(model).front().mesh);
  const auto mesh = comm::make_mpi_mesh(*the_world, layout.mesh, 60.0);
  GrowingRun run(model, layout, *mesh, options, true);
  const auto raise = [&] {
    for (const step::StateTable& table : run.run().session().state().tables()) {
      if (table.name.starts_with("quantization/scale/")) *table.view.data<float>() = 0x1p-20f;
    }
  };
  raise();
  const step::StepOutput first = run.run().step(GrowingRun::kGrows);
  EXPECT_EQ(first.result->skipped(), step::Skip::saturated);
  EXPECT_EQ(first.progress->replays, 1);
  raise();
  const step::StepOutput second = run.run().step(GrowingRun::kGrows);
  EXPECT_EQ(second.result->skipped(), step::Skip::none);
  EXPECT_GT(second.result->saturation, 0);
  EXPECT_EQ(second.progress->replay_step, -1);
  EXPECT_EQ(second.progress->replays, 0);
}

// A checkpoint between a skipped step and its replay, loaded on another mesh, gives the bits of a run without it.
TEST(Fp8, ACheckpointBeforeAReplayResumes) {
  const models::Model model = fp8_model();
  const auto self = comm::make_self_mesh();
  GrowingRun one(model, fp8_layout(model, {}), *self, guarded(), false);
  ASSERT_FALSE(one.go_on().steps.empty());
  const Tensors expected = one.states();
  const TemporaryFolder own;
  const std::string root = the_world->all_gather_strings(own.path("checkpoints")).front();
  const std::vector<plan::Layout> meshes = testing::meshes(model);
  step::OptimizerProgress progress;
  {
    const plan::Layout layout = fp8_layout(model, meshes.front().mesh);
    const auto mesh = comm::make_mpi_mesh(*the_world, layout.mesh, 60.0);
    GrowingRun before(model, layout, *mesh, guarded(), true);
    progress = *before.run().step(GrowingRun::kGrows).progress;
    ASSERT_EQ(progress.replay_step, GrowingRun::kGrows);
    train::save(before.run().session(), the_world, {.root = root}, {.step = 1, .recipe = "{}", .config = "{}"});
  }
  checkpoint::Checkpoint checkpoint = checkpoint::Checkpoint::open(cat(root, "/", checkpoint::step_name(1)));
  const plan::Layout layout = fp8_layout(model, meshes.back().mesh);
  const auto mesh = comm::make_mpi_mesh(*the_world, layout.mesh, 60.0);
  GrowingRun after(model, layout, *mesh, guarded(), true);
  engine::load(after.run().session(), checkpoint);
  after.run().session().set_progress(progress);
  after.go_on();
  const Tensors states = after.states();
  for (const auto& [name, values] : expected) EXPECT_TRUE(states.at(name) == values) << name;
}

// A model of real layers, with scales that are no powers of two: what another mesh changes of a gradient is less than a
// quarter of what FP8 changes of it.
TEST(Fp8, AModelsGradientsAreThoseOfOneRank) {
  const models::Model plain(testing::toy_description(false));
  const models::Model model(testing::toy_description(false),
                            nn::with_fp8_weights(nn::common_domain, [](int) { return true; }));
  const auto layout_of = [&](const models::Model& of, const plan::Layout& base) {
    plan::Layout layout = base;
    layout.gradient_clip = 0;
    layout.compute = layout.reduce_dtype = layout.kv_reduce_dtype = DType::f32;
    if (&of == &model) plan::set_formats(layout, of, {.saturation_limit = 1});
    return layout;
  };
  // The first moments of AdamW after one step are its gradients times a constant.
  const auto gradients = [](const Tensors& states) {
    Tensors out;
    for (const auto& [name, values] : states) {
      if (name.starts_with("optimizer/exp_avg/")) out[name] = values;
    }
    return out;
  };
  const auto on_one_rank = [&](const models::Model& of) {
    const auto self = comm::make_self_mesh();
    plan::Layout layout = layout_of(of, testing::toy_layout({}, of));
    const testing::ToySteps steps(layout, self->place(), whole_batch());
    const auto device = make_cpu_device();
    engine::Session session(of, layout, *device, *self, {step::Purpose::train});
    session.initialise(3);
    testing::Trained trained;
    testing::take_steps(session, steps, {.inputs = {0}}, trained);
    trained.after = gradients(testing::states_of(session));
    return trained;
  };
  const testing::Trained exact = on_one_rank(plain), one = on_one_rank(model);
  EXPECT_NEAR(one.losses[0], exact.losses[0], 0.02 * exact.losses[0]);
  EXPECT_NE(one.losses[0], exact.losses[0]);
  ASSERT_FALSE(one.after.empty());
  for (const plan::Layout& base : testing::meshes(model)) {
    plan::Layout layout = layout_of(model, base);
    const auto mesh = comm::make_mpi_mesh(*the_world, layout.mesh, 60.0);
    const testing::ToySteps steps(layout, mesh->place(), whole_batch());
    const auto device = make_cpu_device({.random_delay_s = 2e-4, .delay_seed = 5});
    engine::Session session(model, layout, *device, *mesh, {step::Purpose::train}, std::nullopt, {.replay = true});
    session.initialise(3);
    testing::Trained trained;
    testing::take_steps(session, steps, {.inputs = {0}}, trained);
    EXPECT_NEAR(trained.losses[0], one.losses[0], 1e-3 * one.losses[0]) << text_of(layout);
    const Tensors many = gradients(assembled(session));
    for (const auto& [name, values] : one.after) {
      const Tensors own{{name, many.at(name)}}, alone{{name, values}};
      const double of_fp8 = testing::difference({{name, exact.after.at(name)}}, alone);
      EXPECT_LT(testing::difference(own, alone), 0.25 * of_fp8) << text_of(layout) << ": " << name;
    }
  }
}

// FP8 without the ops that write it themselves: each input and gradient is written in the compute dtype, then rounded.
class TwoPasses : public nn::Fp8Scaling {
 public:
  using nn::Fp8Scaling::Fp8Scaling;
  std::optional<ops::Fp8Output> output(nn::LayerContext&, const nn::Quantization&, const Shape&) const override {
    return {};
  }
};

// Inputs that are saved in FP8, and ops that write FP8, change no bit of a model: with every way to recompute, delayed
// gradients of weights, both kinds of scales, on every mesh.
TEST(Fp8, InputsSavedInFp8ChangeNoBit) {
  const models::Model model(testing::toy_description(false),
                            nn::with_fp8_weights(nn::common_domain, [](int) { return true; }));
  const auto run = [&](plan::Layout layout, comm::Mesh& mesh, bool saved) {
    for (nn::SavePolicy& policy : layout.policies) policy.fp8_inputs = saved;
    if (!saved) layout.quantizer = std::make_shared<TwoPasses>(nn::Fp8Options{});
    const testing::ToySteps steps(layout, mesh.place(), whole_batch());
    const auto device = make_cpu_device({.random_delay_s = 2e-4, .delay_seed = 5});
    engine::Session session(model, layout, *device, mesh, {step::Purpose::train}, std::nullopt, {.replay = true});
    session.initialise(3);
    testing::Trained trained;
    testing::take_steps(session, steps, {.inputs = {0, 1}}, trained);
    trained.after = the_world->size() > 1 ? assembled(session) : testing::states_of(session);
    return std::pair{trained, session.planned_bytes()};
  };
  int i = the_world->size();
  for (const plan::Layout& base : testing::meshes(model)) {
    const auto mesh = comm::make_mpi_mesh(*the_world, base.mesh, 60.0);
    for (const Checkpointing checkpointing : {Checkpointing::none, Checkpointing::selective, Checkpointing::gate_up,
                                              Checkpointing::projections, Checkpointing::full}) {
      plan::Layout layout = base;
      layout.compute = layout.reduce_dtype = layout.kv_reduce_dtype = DType::f32;
      plan::set_formats(layout, model, {.scaling = i % 2 == 0 ? Fp8Scaling::delayed : Fp8Scaling::current});
      for (nn::SavePolicy& policy : layout.policies) {
        policy.checkpointing = checkpointing;
        policy.delay_weight_gradients = i % 3 == 0;
      }
      ++i;
      const auto [plain, plain_bytes] = run(layout, *mesh, false);
      const auto [saved, saved_bytes] = run(layout, *mesh, true);
      const std::string what = cat(text_of(layout), ", checkpointing ", static_cast<int>(checkpointing));
      EXPECT_EQ(saved.losses, plain.losses) << what;
      ASSERT_EQ(saved.after.size(), plain.after.size());
      for (const auto& [name, values] : plain.after)
        EXPECT_TRUE(saved.after.at(name) == values) << what << ": " << name;
      if (checkpointing == Checkpointing::none) {
        EXPECT_LT(saved_bytes, plain_bytes) << what;
      }
    }
  }
}

// What layers read of a weight that was gathered in FP8 is the cast of the weight that was gathered in float32.
TEST(Fp8, AGatheredWeightIsTheCastOfTheWeight) {
  const models::Model model = fp8_model();
  plan::Layout layout = fp8_layout(model, testing::meshes(model).front().mesh);
  layout.shard_policy = ShardPolicy::optimizer;  // whole weights on every rank
  const auto mesh = comm::make_mpi_mesh(*the_world, layout.mesh, 60.0);
  ExactRun run(model, layout, *mesh, whole_batch());
  testing::write_exact(run.session());
  for (int i = 0; i < 3; ++i) run.step(i);
  const Tensors states = assembled(run.session());
  int checked = 0;
  for (int f = 0; f < run.session().state().flats(); ++f) {
    const step::FlatState& state = run.session().state().flat(f);
    if (!state.quantized) continue;
    const nn::Flat& flat = model.flats()[static_cast<std::size_t>(f)];
    for (int p = 0; p < static_cast<int>(flat.params().size()); ++p) {
      const std::vector<float>& masters = states.at(flat.params()[static_cast<std::size_t>(p)].name);
      const float inverse = 1.0f / state.scales.data<float>()[p];
      const TensorView q = flat.view(state.unsharded, p), t = flat.transposed_view(state.transposed, p);
      for (std::int64_t r = 0; r < q.size(0); ++r) {
        for (std::int64_t c = 0; c < q.size(1); ++c) {
          const F8E4M3 expected(masters[static_cast<std::size_t>(r * q.size(1) + c)] * inverse);
          ASSERT_EQ(q.data<F8E4M3>()[r * q.size(1) + c].bits, expected.bits);
          ASSERT_EQ(t.data<F8E4M3>()[c * q.size(0) + r].bits, expected.bits);
          ++checked;
        }
      }
    }
  }
  EXPECT_GT(checked, 0);
}

}  // namespace
}  // namespace hawser
