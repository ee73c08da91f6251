// Steps of FP8 training that saturate are skipped and replayed, on CPU ranks.
#include "base/testing/temporary_folder.h"
#include "checkpoint/root.h"
#include "engine/load_state.h"
#include "fp8_exact.h"
#include "train/saver.h"

namespace hawser {
namespace fp8_replay_test {

using testing::assembled;
using testing::ExactRun;
using testing::fp8_layout;
using testing::fp8_model;
using testing::kFp8Steps;
using testing::Tensors;
using testing::whole_batch;
using testing::without_head;

nn::Fp8Options guarded(float limit = 0.1f) {  // less than what saturates on each mesh, more than at first
  nn::Fp8Options options = testing::kExactFp8;
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
    auto fields() { return std::tie(steps, saturation, tables); }
  };
  static constexpr std::int64_t kGrows = 2;

  GrowingRun(const models::Model& model, const plan::LayoutChoices& layout, comm::Mesh& mesh,
             const nn::Fp8Options& options, bool whole)
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
  // The steps up to kFp8Steps, with three in flight, as train/fit.h replays them.
  Replays go_on() { return go_on(kGrows, kFp8Steps); }
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
  static plan::LayoutChoices with(plan::LayoutChoices layout, const nn::Fp8Options& options) {
    layout.quantizer = std::make_shared<nn::Fp8Scaling>(options);
    return layout;
  }
  ExactRun run_;
  bool whole_;
};

struct Grown {
  GrowingRun::Replays replays;
  Tensors states;  // after all steps
  auto fields() { return std::tie(replays, states); }
};

// A growing run of one rank; `tables`, if there are any: those with which its inputs grow.
Grown grown_on_one_rank(const models::Model& model, const nn::Fp8Options& options, const TableValues& tables = {}) {
  return testing::on_one_rank([&] {
    const auto self = comm::make_self_mesh();
    GrowingRun run(model, fp8_layout(model, {}), *self, options, false);
    run.write_tables(tables);
    Grown out{.replays = run.go_on()};
    out.states = run.states();
    return out;
  });
}

using Fp8Replay = testing::CaseTest<testing::ExactCase>;

// A step that saturates is skipped, and so are those in flight after it; replayed, it has the bits of a run that had
// the new scales from its start.
const Grown& replayed_on_one_rank() {
  static Grown one;
  if (!one.states.empty()) return one;
  const models::Model model = fp8_model();
  one = grown_on_one_rank(model, guarded());
  const GrowingRun::Replays& replays = one.replays;
  EXPECT_FALSE(replays.steps.empty());
  EXPECT_LT(replays.steps.size(), 8u);
  for (const std::int64_t step : replays.steps) EXPECT_EQ(step, GrowingRun::kGrows);
  EXPECT_GT(replays.saturation, 0.01f);
  EXPECT_LE(replays.saturation, 1);

  const Grown refreshed = grown_on_one_rank(model, guarded(1), replays.tables);
  EXPECT_TRUE(refreshed.replays.steps.empty());
  EXPECT_TRUE(refreshed.states == one.states);

  const Grown without = grown_on_one_rank(model, guarded(1));
  EXPECT_TRUE(without.replays.steps.empty());
  EXPECT_FALSE(without.states == one.states);
  return one;
}

// Every mesh and way to recompute agrees.
TEST_P(Fp8Replay, HasTheBitsOfOneRank) {
  const auto& [replays, expected] = replayed_on_one_rank();
  const testing::ExactCase& c = GetParam();
  const models::Model model = fp8_model();
  const auto mesh = rank_mesh(c.on.mesh);
  GrowingRun run(model, testing::with_options(fp8_layout(model, c.on.mesh), c), *mesh, guarded(), true);
  EXPECT_EQ(run.go_on().steps, replays.steps);
  const Tensors states = run.states();
  for (const auto& [name, values] : expected) EXPECT_TRUE(states.at(name) == values) << name;
}

std::vector<testing::ExactCase> replayed() {
  std::vector<testing::ExactCase> out;
  if (the_world->size() > 4) return out;  // long on eight ranks
  for (testing::ExactCase c : testing::exact_cases()) {
    const std::size_t i = out.size() + static_cast<std::size_t>(the_world->size());
    c.on.shard_policy = ShardPolicy::parameters;
    c.on.policy.checkpointing = i % 2 == 0 ? Checkpointing::full : Checkpointing::none;
    c.on.in_flight = 1;
    out.push_back(c);
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Meshes, Fp8Replay, ::testing::ValuesIn(replayed()), testing::CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Fp8Replay);

// What a pass computes again is not counted again, and the micro-batches of a step count together.
TEST(Fp8, SaturatedElementsAreCountedOnce) {
  const models::Model model = fp8_model();
  const plan::LayoutChoices base = fp8_layout(model, testing::sharded_meshes().front().mesh);
  const auto mesh = rank_mesh(base.mesh);
  const auto records = [&](Checkpointing checkpointing, bool delayed) {
    plan::LayoutChoices layout = base;
    for (nn::SavePolicy& policy : layout.policies) {
      policy.checkpointing = checkpointing;
      policy.delay_weight_gradients = delayed;
    }
    GrowingRun run(model, layout, *mesh, guarded(), true);
    EXPECT_EQ(run.run().step(GrowingRun::kGrows).result->skipped(), step::Skip::saturated);
    std::vector<float> all = testing::floats_of(run.run().session().state().sites().records);
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

using Fp8Saturation = testing::CaseTest<testing::MeshCase>;

// A step is skipped on all ranks if the values of one are saturated.
TEST_P(Fp8Saturation, OfOneRankIsThatOfAll) {
  const models::Model model = fp8_model();
  const plan::LayoutChoices layout = fp8_layout(model, GetParam().mesh);
  const auto mesh = rank_mesh(layout.mesh);
  GrowingRun run(model, layout, *mesh, guarded(), true);
  testing::write_exact(run.run().session());
  if (the_world->rank().value() == the_world->size() - 1) {
    for (const step::StateTable& table : run.run().session().state().tables()) {
      if (table.name.starts_with("quantization/scale/")) *table.view.data<float>() = 0x1p-20f;
    }
  }
  const step::StepResult result = *run.run().step(GrowingRun::kGrows).result;
  EXPECT_EQ(result.skipped(), step::Skip::saturated);
  const std::string mine = cat(result.saturation, " of ", result.saturated_site);
  for (const std::string& theirs : the_world->all_gather_strings(mine)) EXPECT_EQ(theirs, mine);
}
INSTANTIATE_TEST_SUITE_P(Meshes, Fp8Saturation, ::testing::ValuesIn(testing::sharded_meshes()), testing::CaseName());

// After the last replay that is allowed, a step counts although it saturates.
TEST(Fp8, AStepIsReplayedAFewTimesOnly) {
  const models::Model model = fp8_model();
  nn::Fp8Options options = guarded();
  options.max_replays = 1;
  const plan::LayoutChoices layout = fp8_layout(model, testing::sharded_meshes().front().mesh);
  const auto mesh = rank_mesh(layout.mesh);
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
  const auto [replays, expected] = grown_on_one_rank(model, guarded());
  ASSERT_FALSE(replays.steps.empty());
  const TemporaryFolder own;
  const std::string root = the_world->all_gather_strings(own.path("checkpoints")).front();
  const std::vector<testing::MeshCase> meshes = testing::sharded_meshes();
  step::OptimizerProgress progress;
  {
    const plan::LayoutChoices layout = fp8_layout(model, meshes.front().mesh);
    const auto mesh = rank_mesh(layout.mesh);
    GrowingRun before(model, layout, *mesh, guarded(), true);
    progress = *before.run().step(GrowingRun::kGrows).progress;
    ASSERT_EQ(progress.replay_step, GrowingRun::kGrows);
    train::save(before.run().session(), the_world, {.root = root}, {.step = 1, .recipe = "{}", .config = "{}"});
  }
  checkpoint::Checkpoint checkpoint = checkpoint::Checkpoint::open(cat(root, "/", checkpoint::step_name(1)));
  const plan::LayoutChoices layout = fp8_layout(model, meshes.back().mesh);
  const auto mesh = rank_mesh(layout.mesh);
  GrowingRun after(model, layout, *mesh, guarded(), true);
  engine::load(after.run().session(), checkpoint);
  after.run().session().set_progress(progress);
  after.go_on();
  const Tensors states = after.states();
  for (const auto& [name, values] : expected) EXPECT_TRUE(states.at(name) == values) << name;
}

}  // namespace fp8_replay_test
}  // namespace hawser
