// Scales that outlive steps: delayed scaling of x and dy, scaled weights, their checkpoints. The layers' sums are
// exact, so that every mesh and every split into micro-batches has the same bits.
#include <chrono>
#include <thread>

#include "base/testing/temporary_folder.h"
#include "checkpoint/root.h"
#include "engine/host_copy.h"
#include "engine/load_state.h"
#include "exact_layers.h"
#include "plan/disk.h"
#include "train/saver.h"
#include "train/snapshot.h"

namespace hawser {
namespace scales_test {

using testing::assembled;
using testing::DelayedScaling;
using testing::exact_cases;
using testing::exact_layout;
using testing::exact_model;
using testing::ExactCase;
using testing::ExactRun;
using testing::Tensors;

constexpr int kSteps = 6;

std::int64_t whole_batch() {
  return 2LL * the_world->size();
}

plan::LayoutChoices layout_of(const ExactCase& c, const models::Model& model) {
  return testing::with_options(exact_layout(model, c.on.mesh), c);
}

Tensors without_head(Tensors all) {
  std::erase_if(all, [](const auto& entry) { return entry.first.find("lm_head") != std::string::npos; });
  return all;
}

// After `steps` steps of the whole batch.
Tensors states_of_one_rank(const models::Model& model, int steps) {
  return testing::on_one_rank([&] {
    const auto self = comm::make_self_mesh();
    ExactRun run(model, exact_layout(model, {}), *self, whole_batch(), false);
    testing::write_exact(run.session());
    for (int i = 0; i < steps; ++i) run.step(i);
    return without_head(testing::states_of(run.session()));
  });
}

const std::string kX = "layer.0/up_projection/x", kScale = "quantization/scale/",
                  kHistory = "quantization/amax_history/";

// The maximum of position_factor over the sequences of a step.
float largest_factor(int step) {
  const testing::ToySequences sequences(testing::kInputs * whole_batch(), testing::kToyLength, testing::kToyDocuments);
  float largest = 0;
  for (std::int64_t i = 0; i < whole_batch(); ++i) {
    for (const std::int32_t position : sequences.get(step % testing::kInputs * whole_batch() + i).positions) {
      largest = std::max(largest, testing::position_factor(position));
    }
  }
  return largest;
}

TEST(Scales, AreThoseOfTheKnownMaxima) {
  const Tensors one = states_of_one_rank(exact_model(true, false, true), kSteps);
  // The maxima of the first layer's x and of the last dy are known: 4 in each row of the table and 2 in each dy, times
  // the largest factor of the step.
  std::vector<float> of_x, of_dy;
  for (int step = kSteps - 1; step > kSteps - 5; --step) {
    of_x.push_back(4 * largest_factor(step));
    of_dy.push_back(2 * largest_factor(step));
  }
  EXPECT_EQ(one.at(kHistory + kX), of_x);
  EXPECT_EQ(one.at(kHistory + "layer.1/down_projection/dy"), of_dy);
  EXPECT_NE(one.at(kHistory + "layer.1/up_projection/x"), of_x);
  EXPECT_EQ(one.at(kScale + kX), std::vector<float>{DelayedScaling().scale_of(std::ranges::max(of_x), 0)});
  EXPECT_EQ(one.count("scale/layers.0.up.weight"), 1u);
  int tables = 0;
  for (const auto& [name, values] : one) tables += name.starts_with("quantization/") ? 1 : 0;
  EXPECT_EQ(tables, 2 * 2 * 2 * 2);  // of x and dy at two sites of two layers
}

using ExactScales = testing::CaseTest<ExactCase>;

TEST_P(ExactScales, HaveTheBitsOfOneRank) {
  const models::Model model = exact_model(true, false, true), transposed = exact_model(true, true, true);
  static const Tensors one = states_of_one_rank(model, kSteps);
  const plan::LayoutChoices layout = layout_of(GetParam(), model);
  const bool other = layout.accumulation == GradientAccumulation::local;
  const auto mesh = rank_mesh(layout.mesh);
  ExactRun run(other ? transposed : model, layout, *mesh, whole_batch());
  testing::write_exact(run.session());
  for (int i = 0; i < kSteps; ++i) EXPECT_EQ(run.step(i).result->skipped(), step::Skip::none);
  const Tensors ours = without_head(assembled(run.session()));
  EXPECT_EQ(ours.size(), one.size());
  for (const auto& [name, values] : one) EXPECT_TRUE(ours.at(name) == values) << name;
}
INSTANTIATE_TEST_SUITE_P(Meshes, ExactScales, ::testing::ValuesIn(exact_cases()), testing::CaseName());

// Not a weight's own bits: with scales, training differs from training without.
TEST(Scales, ChangeWhatIsComputed) {
  if (the_world->size() > 1) GTEST_SKIP() << "one rank is enough";
  const models::Model model = exact_model();
  const auto weights_with = [&](LinearFormat format) {
    const auto self = comm::make_self_mesh();
    plan::LayoutChoices layout = exact_layout(model, {});
    testing::set_formats(layout, {nn::Site::up_projection, nn::Site::down_projection}, format);
    ExactRun run(model, layout, *self, whole_batch(), false);
    testing::write_exact(run.session());
    for (int i = 0; i < kSteps; ++i) run.step(i);
    return testing::states_of(run.session()).at("layers.1.up.weight");
  };
  const auto plain = weights_with(LinearFormat::compute);
  EXPECT_NE(weights_with(LinearFormat::fp8_delayed), plain);
  EXPECT_NE(weights_with(LinearFormat::fp8_current), plain);
}

// The history has four entries, the newest first. An amax of all zeros is an entry; one that is not finite is none, and
// neither is that of a skipped step. Without an entry that is not zero, the scale stays 1.
TEST(Scales, HistoryByHand) {
  const models::Model model = exact_model();
  const float inf = std::numeric_limits<float>::infinity();
  struct Row {
    float factor;
    bool skip;
    std::vector<float> history;
    float scale;  // the maximum of the history over 448, rounded up to a power of two
  };
  const std::vector<Row> rows = {{0, false, {0, 0, 0, 0}, 1},         {1, false, {4, 0, 0, 0}, 0x1p-6f},
                                 {4, false, {16, 4, 0, 0}, 0x1p-4f},  {inf, false, {16, 4, 0, 0}, 0x1p-4f},
                                 {2, false, {8, 16, 4, 0}, 0x1p-4f},  {8, true, {8, 16, 4, 0}, 0x1p-4f},
                                 {0, false, {0, 8, 16, 4}, 0x1p-4f},  {0.5f, false, {2, 0, 8, 16}, 0x1p-4f},
                                 {0.5f, false, {2, 2, 0, 8}, 0x1p-5f}};
  const plan::LayoutChoices layout = layout_of(exact_cases().back(), model);
  const auto mesh = rank_mesh(layout.mesh);
  ExactRun run(model, layout, *mesh, whole_batch());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    testing::write_exact(run.session(), std::isfinite(row.factor) ? row.factor : 1.0f);
    if (!std::isfinite(row.factor)) {
      const step::FlatState& table = run.session().state().flat(0);
      for (std::int64_t e = 0; e < table.count; ++e) {
        if ((table.begin + e) % model.width() == 0) table.stored.data<float>()[e] = inf;
      }
      run.session().parameters_changed();
    }
    const auto output = run.step(0, [&](step::StepInput& input) { input.skip = row.skip; });
    EXPECT_EQ(output.result->skipped(), row.skip ? step::Skip::no_target : step::Skip::none) << i;
    const Tensors now = testing::states_of(run.session());
    const Tensors all = assembled(run.session());
    EXPECT_EQ(all.at(kHistory + kX), row.history) << i;
    EXPECT_EQ(all.at(kScale + kX), std::vector<float>{row.scale}) << i;
  }
}

// Each matrix is recorded once: recompute and weight gradients record nothing, and use the scales of the step.
TEST(Scales, RecomputeAndDelayedGradientsRecordNothingTwice) {
  const models::Model model = exact_model();
  const plan::LayoutChoices base = layout_of(exact_cases().front(), model);
  std::optional<Tensors> first;
  for (const Checkpointing checkpointing : {Checkpointing::none, Checkpointing::full}) {
    for (const bool delayed : {false, true}) {
      plan::LayoutChoices layout = base;
      const auto quantizer = std::make_shared<DelayedScaling>();
      layout.quantizer = quantizer;
      layout.batch_sizes.sequences = 1;
      layout.schedule.group = delayed ? 2 : 1;
      for (auto& policy : layout.policies) {
        policy.checkpointing = checkpointing;
        policy.delay_weight_gradients = delayed;
      }
      const auto mesh = rank_mesh(layout.mesh);
      ExactRun run(model, layout, *mesh, whole_batch());
      testing::write_exact(run.session());
      for (int i = 0; i < kSteps; ++i) run.step(i);
      const int matrices = 2 * 2 * 2 * run.layout().micro_batches;  // layers, sites, operands
      EXPECT_EQ(quantizer->recorded(), kSteps * matrices);
      const Tensors states = assembled(run.session());
      if (!first) first = states;
      EXPECT_TRUE(states == *first) << static_cast<int>(checkpointing) << " delayed " << delayed;
    }
  }
}

struct ResumeCase {
  ExactCase from, to;

  std::string name() const { return testing::joined(from.name(), "to", to.name()); }
  friend void PrintTo(const ResumeCase& c, std::ostream* out) { *out << c.name(); }
};

using ScalesOfCheckpoint = testing::CaseTest<ResumeCase>;

// What a checkpoint has in the middle of a history resumes on another mesh with the bits of a run without a stop.
TEST_P(ScalesOfCheckpoint, ResumeOnAnotherMesh) {
  const models::Model model = exact_model(true, false, true);
  static const Tensors expected = states_of_one_rank(model, kSteps);
  const TemporaryFolder own;
  const std::string root = the_world->all_gather_strings(own.path("checkpoints")).front();
  const plan::LayoutChoices from = layout_of(GetParam().from, model), to = layout_of(GetParam().to, model);
  constexpr int kBefore = 3;
  {
    const auto mesh = rank_mesh(from.mesh);
    ExactRun run(model, from, *mesh, whole_batch());
    testing::write_exact(run.session());
    for (int step = 0; step < kBefore; ++step) run.step(step);
    const engine::RunState state{.step = 1, .recipe = "{}", .config = "{}"};
    train::save(run.session(), the_world, {.root = root}, state);
    train::save(run.session(), the_world, {.root = root + "/of-run"}, state, train::kSavedByRun);
  }
  const std::string folder = checkpoint::step_name(1);
  checkpoint::Checkpoint checkpoint = checkpoint::Checkpoint::open(cat(root, "/", folder));
  std::int64_t bytes = 0;
  const checkpoint::Checkpoint of_run = checkpoint::Checkpoint::open(cat(root, "/of-run/", folder));
  for (const checkpoint::SavedTensor& tensor : of_run.tensors()) {
    bytes += tensor.shape.elements() * size_of(tensor.dtype);
  }
  const auto mesh = rank_mesh(to.mesh);
  ExactRun run(model, to, *mesh, whole_batch());
  EXPECT_EQ(plan::checkpoint_bytes(model, run.layout()), bytes);
  std::vector<engine::StatePart> parts = engine::state_parts(run.session(), train::kSavedByRun);
  EXPECT_EQ(run.session().plan(step::Purpose::train).saved_bytes, engine::place_copies(parts, nullptr));
  EXPECT_TRUE(engine::has_scales(run.session(), checkpoint));
  engine::load(run.session(), checkpoint);
  for (int step = kBefore; step < kSteps; ++step) run.step(step);
  const Tensors after = without_head(assembled(run.session()));
  for (const auto& [name, values] : expected) {
    EXPECT_TRUE(after.at(name) == values) << name;
  }
}

std::vector<ResumeCase> each_to_next() {
  std::vector<ResumeCase> out;
  const std::vector<ExactCase> all = exact_cases();
  for (std::size_t i = 0; i < all.size(); ++i) out.push_back({all[i], all[(i + 1) % all.size()]});
  return out;
}
INSTANTIATE_TEST_SUITE_P(Meshes, ScalesOfCheckpoint, ::testing::ValuesIn(each_to_next()), testing::CaseName());

// A checkpoint of a run without quantized Linears starts one with them: scales of weights are measured, histories
// empty.
TEST(Scales, StartFromACheckpointWithout) {
  const models::Model plain = exact_model(false), model = exact_model();
  const TemporaryFolder own;
  const std::string root = the_world->all_gather_strings(own.path("checkpoints")).front();
  plan::LayoutChoices layout = layout_of(exact_cases().front(), model);
  {
    plan::LayoutChoices without = layout;
    without.quantizer = nullptr;
    for (auto& policy : without.policies) policy.formats = {};
    const auto mesh = rank_mesh(without.mesh);
    ExactRun run(plain, without, *mesh, whole_batch());
    testing::write_exact(run.session());
    for (int i = 0; i < 2; ++i) run.step(i);
    train::save(run.session(), the_world, {.root = root}, {.step = 1, .recipe = "{}", .config = "{}"});
  }
  checkpoint::Checkpoint checkpoint = checkpoint::Checkpoint::open(cat(root, "/", checkpoint::step_name(1)));
  const auto mesh = rank_mesh(layout.mesh);
  ExactRun run(model, layout, *mesh, whole_batch());
  EXPECT_FALSE(engine::has_scales(run.session(), checkpoint));
  EXPECT_THROW(engine::load(run.session(), checkpoint), UserError);
  engine::load(run.session(), checkpoint, {.scales = false});
  const Tensors states = assembled(run.session());
  for (const auto& [name, values] : states) {
    if (name.starts_with(kHistory)) {
      EXPECT_EQ(values, std::vector<float>(4, 0.0f));
    }
    if (name.starts_with(kScale)) {
      EXPECT_EQ(values, std::vector<float>(1, 1.0f));
    }
    if (!name.starts_with("scale/")) continue;
    float amax = 0;
    for (const float weight : states.at(name.substr(6))) amax = testing::join_amax(amax, weight);
    EXPECT_EQ(values, std::vector<float>{DelayedScaling().scale_of(amax, 0)}) << name;
  }
  EXPECT_EQ(run.step(2).result->skipped(), step::Skip::none);
}

// Scales that were loaded are kept, whatever the weights say: a run resumes with those that it had.
TEST(Scales, LoadedOnesAreKept) {
  const models::Model model = exact_model();
  const plan::LayoutChoices layout = layout_of(exact_cases().front(), model);
  const auto mesh = rank_mesh(layout.mesh);
  ExactRun run(model, layout, *mesh, whole_batch());
  testing::write_exact(run.session());
  engine::Session& session = run.session();
  const auto read = [&] {  // of the first parameter
    std::vector<float> all;
    for (int f = 0; f < session.state().flats(); ++f) {
      const step::FlatState& state = session.state().flat(f);
      if (!state.quantized_after_updates()) continue;
      all.push_back(*state.scales.data<float>());
      for (const float value : testing::floats_of(state.compute)) all.push_back(value);
    }
    return all;
  };
  const std::vector<float> measured = read();
  for (int f = 0; f < session.state().flats(); ++f) {
    const TensorView scales = session.state().flat(f).scales;
    for (std::int64_t i = 0; !scales.empty() && i < scales.elements(); ++i) scales.data<float>()[i] *= 1024;
  }
  session.parameters_changed(engine::Scales::keep);
  const std::vector<float> kept = read();
  EXPECT_EQ(kept.front(), 1024 * measured.front());
  session.parameters_changed(engine::Scales::keep);
  EXPECT_TRUE(read() == kept);
  session.parameters_changed();
  EXPECT_TRUE(read() == measured);
}

// The copies of a snapshot are those of the step that it was taken after, while the next one runs.
TEST(Scales, ASnapshotHasThoseOfItsStep) {
  const models::Model model = exact_model();
  const plan::LayoutChoices layout = layout_of(exact_cases().front(), model);
  const auto mesh = rank_mesh(layout.mesh);
  const auto copies_of = [](const std::vector<NamedState>& states) {
    std::map<std::string, std::vector<float>> copies;
    for (const NamedState& state : states) {
      for (const Box& box : state.boxes) {
        for (const float value : testing::floats_of(box.view)) copies[state.name].push_back(value);
      }
    }
    return copies;
  };
  ExactRun twin(model, layout, *mesh, whole_batch());
  testing::write_exact(twin.session());
  for (int i = 0; i < 2; ++i) twin.step(i);
  const auto expected = copies_of(engine::HostCopy(twin.session()).states());
  ExactRun run(model, layout, *mesh, whole_batch());
  testing::write_exact(run.session());
  train::Snapshot snapshot(run.session());
  run.enqueue(0);
  const step::StepOutput second = run.enqueue(1);
  // The copies begin late: only what they are waited for keeps the state as it is until then.
  const auto late = run.session().device().make_stream("late");
  late->wait(second.end);
  late->launch({.name = "sleep", .kind = OpKind::host},
               [] { std::this_thread::sleep_for(std::chrono::milliseconds(300)); });
  snapshot.take(late->record_event());
  for (int i = 2; i < 5; ++i) run.enqueue(i);
  snapshot.wait();
  run.session().synchronize();
  EXPECT_TRUE(copies_of(snapshot.states()) == expected);
  EXPECT_FALSE(copies_of(engine::HostCopy(run.session()).states()) == expected);
}

// A step whose values are saturated changes nothing, nor do those that the host has enqueued after it, until it runs
// again: then they give what they would have given without.
TEST(Scales, ASaturatedStepRunsAgain) {
  const models::Model model = exact_model();
  plan::LayoutChoices layout = layout_of(exact_cases().front(), model);
  layout.quantizer = std::make_shared<DelayedScaling>(DelayedScaling::Settings{.replays = true});
  const auto mesh = rank_mesh(layout.mesh);
  const auto raise = [](engine::Session& session) {
    const TensorView scales = session.state().sites().scales;
    std::fill_n(scales.data<float>(), scales.elements(), 16.0f);
  };
  const auto larger = [](ExactRun& run) { testing::write_exact(run.session(), 32); };
  ExactRun plain(model, layout, *mesh, whole_batch()), run(model, layout, *mesh, whole_batch());
  for (ExactRun* const which : {&plain, &run}) {
    testing::write_exact(which->session());
    EXPECT_EQ(which->step(0).result->skipped(), step::Skip::none);
    larger(*which);
  }
  const Tensors before = assembled(run.session());
  // The next step has the same maxima.
  const auto still = [](step::StepInput& input) { input.record.learning_rate = 0; };
  const step::StepOutput saturated = run.enqueue(1, still), later = run.enqueue(1 + testing::kInputs, still);
  run.session().synchronize();
  EXPECT_EQ(saturated.result->skipped(), step::Skip::saturated);
  EXPECT_EQ(saturated.progress->replay_step, 1);
  EXPECT_EQ(later.result->skipped(), step::Skip::replay);
  EXPECT_STREQ(to_string(later.result->skipped()), "replay");
  EXPECT_EQ(later.progress->step, 1);
  EXPECT_TRUE(assembled(run.session()) == before);
  for (ExactRun* const which : {&plain, &run}) {
    raise(which->session());
    const step::StepOutput again = which->enqueue(1, still), after = which->enqueue(1 + testing::kInputs, still);
    which->session().synchronize();
    EXPECT_EQ(again.result->skipped(), step::Skip::none);
    EXPECT_EQ(after.result->skipped(), step::Skip::none);
    EXPECT_EQ(after.progress->replay_step, -1);
    EXPECT_EQ(after.progress->step, 3);
  }
  EXPECT_TRUE(assembled(run.session()) == assembled(plain.session()));
}

}  // namespace scales_test
}  // namespace hawser
