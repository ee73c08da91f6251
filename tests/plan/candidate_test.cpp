// Choices of the planner that no recipe can say yet: offload, state in host memory, pipeline stages. And tensor slices.
// What a candidate needs is what the plan of a layout needs that is made by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "config/config.h"
#include "plan/forecast.h"
#include "plan/pipeline_form.h"
#include "plan/policy_candidates.h"
#include "support.h"

namespace hawser {
namespace candidate_test {

using plan::Candidate;
using plan::Choices;
using plan::Parallelism;
using plan::StatePlace;

constexpr std::int64_t kLength = 64;

Recipe recipe_of(int sequences) {
  Recipe recipe;
  recipe.data.sequence_length = kLength;
  recipe.data.pack = Packing::chunks;
  recipe.train.global_batch_size = sequences;
  recipe.memory.activation_checkpointing = Checkpointing::none;
  return recipe;
}

models::ModelDescription description_of(int blocks) {
  return testing::llama_description({.width = 256,
                                     .heads = 4,
                                     .kv_heads = 2,
                                     .head_dim = 64,
                                     .inner = 1024,
                                     .vocabulary = 4096,
                                     .blocks = blocks,
                                     .tied = false});
}

// Host memory is that of a machine of two ranks.
plan::Target target_of(std::int64_t host_memory = std::int64_t{1} << 40) {
  plan::Target target = plan::load_target("h200");
  target.host.memory = host_memory;
  target.host.process = 0;
  target.context = target.communicator = 0;
  return target;
}

plan::Forecaster forecaster(const Recipe& recipe, const models::Model& model, int world, const plan::Target& target,
                            Choices choices) {
  return {recipe, model, world, target, {.cores = 4, .memory = std::int64_t{1} << 50}, 1, std::move(choices)};
}

// Two tensor ranks, sequence parallel.
Parallelism tensor_split() {
  return {.mesh = {.tensor = 2}, .partition = {}, .sequence_parallel = true};
}

// What completes the layouts of a pipeline.
Choices fillings() {
  return {.complete = [](plan::LayoutChoices& layout, const models::Model&) {
    if (layout.partition.stages == 1) return;
    layout.schedule.passes =
        plan::schedule_of(PipelineSchedule::one_forward_one_backward, layout.partition.stages).passes;
  }};
}

TEST(Candidates, OfTensorSlicesNeedWhatTheirModelNeeds) {
  const models::Model whole(description_of(4));
  const Recipe recipe = recipe_of(2);
  const plan::Forecaster planner = forecaster(recipe, whole, 2, target_of(), fillings());
  Candidate candidate = planner.candidate();
  candidate.parallelism = tensor_split();
  const plan::Forecast f = planner.forecast(candidate);
  ASSERT_EQ(f.stages.size(), 1u);
  EXPECT_EQ(f.layout.micro_batches, 2);  // both ranks have the same sequences

  const plan::RankModels parts(whole);
  const auto half = parts.of(tensor_split(), 0, 4);
  plan::LayoutChoices layout = testing::make_test_layout(
      {.length = kLength, .documents = 1, .compute = DType::bf16, .reduce_dtype = DType::bf16}, *half);
  layout.device = DeviceKind::cuda;
  layout.kv_reduce_dtype = DType::bf16;
  layout.mesh = {.tensor = 2};
  layout.micro_batches = 2;
  layout.batch_sizes = f.layout.batch;
  layout.sequence_parallel = true;
  layout.gradient_clip = plan::gradient_clip_of(recipe);
  for (const int rank : {0, 1}) {
    const auto part = parts.of(tensor_split(), rank, 4);
    const plan::RankPlan alone = plan::plan_rank(*part, plan::derive(layout, *part), step::Purpose::train, rank);
    EXPECT_EQ(f.largest().costs.total_bytes, alone.bytes());
    EXPECT_EQ(f.largest().costs.saved_bytes, alone.saved_bytes);
  }
  // A rank has half of most tensors, and no model that is whole.
  const plan::Forecast one = planner.forecast(planner.candidate());
  EXPECT_LT(f.largest().costs.model_flops, 1.1 * one.largest().costs.model_flops);
  EXPECT_NE(f.largest().costs.total_bytes, one.largest().costs.total_bytes);
}

TEST(Candidates, OfStagesNeedWhatTheirPlansNeed) {
  const models::Model model(description_of(4));
  const Recipe recipe = recipe_of(4);
  const plan::Forecaster planner = forecaster(recipe, model, 2, target_of(), fillings());
  Candidate candidate = planner.candidate();
  candidate.parallelism = {.mesh = {.pipeline = 2}, .partition = {.stages = 2, .ends = {3, 4}}};
  const plan::Forecast f = planner.forecast(candidate);
  ASSERT_EQ(f.stages.size(), 2u);
  plan::LayoutChoices layout = plan::layout_choices(recipe, model, 1, DType::bf16, 1, DeviceKind::cuda);
  layout.partition = candidate.parallelism.partition;
  layout.schedule.passes = plan::schedule_of(PipelineSchedule::one_forward_one_backward, 2).passes;
  const auto plans = plan::plan_stages(model, plan::derive(layout, model), step::Purpose::train, 0, true);
  for (std::size_t s = 0; s < 2; ++s) EXPECT_EQ(f.stages[s].costs.total_bytes, plans[s].bytes()) << s;
  EXPECT_GT(f.needed(f.stages[0]), f.needed(f.stages[1]));
}

// Bytes of a plan's saved tensors that are in use at once, of those that forward has written.
std::int64_t most_stored(const plan::RankPlan& plan) {
  const std::vector<program::Buffer>& buffers = plan.buffers.buffers;
  const program::BufferIndex index(buffers);
  struct Use {
    int first = -1, last = -1;
  };
  std::map<int, Use> uses;  // in the order of the host's calls
  for (std::size_t i = 0; i < plan.trace.items.size(); ++i) {
    for (const Access& access : plan.trace.items[i].record.accesses) {
      const std::optional<int> b = index.find(access.address);
      if (!b || buffers[static_cast<std::size_t>(*b)].category != "saved activations") continue;
      Use& use = uses[*b];
      if (use.first < 0) use.first = static_cast<int>(i);
      use.last = static_cast<int>(i);
    }
  }
  std::vector<std::int64_t> change(plan.trace.items.size() + 1, 0);
  for (const auto& [b, use] : uses) {
    const auto first = static_cast<std::size_t>(use.first);
    const auto writer = static_cast<std::size_t>(plan.trace.items[first].instruction);
    if (plan.program.instructions[writer].op != program::Op::forward) continue;
    const std::int64_t bytes = round_up(buffers[static_cast<std::size_t>(b)].bytes, Device::kAlignment);
    change[first] += bytes;
    change[static_cast<std::size_t>(use.last) + 1] -= bytes;
  }
  std::int64_t now = 0, most = 0;
  for (const std::int64_t by : change) most = std::max(most, now += by);
  return most;
}

// The estimate of what blocks store counts the micro-batches that a schedule really has in flight.
TEST(Candidates, StoreWhatTheirScheduleHasInFlight) {
  const models::Model model(description_of(4));
  using PassesOfStage = decltype(plan::Schedule::passes);
  struct Case {
    const char* name;
    models::PipelinePartition partition;
    int in_flight;
    PassesOfStage passes;  // null: groups of in_flight
    bool delays = false;
  };
  const models::PipelinePartition one{.stages = 1}, even{.stages = 2, .ends = {2, 4}},
      uneven{.stages = 2, .ends = {1, 4}}, four{.stages = 4, .ends = {1, 2, 3, 4}},
      interleaved{.stages = 2, .ends = {1, 2, 3, 4}};
  const PassesOfStage gpipe = [&](int stage, int micro_batches) {
    return step::grouped_passes(micro_batches, micro_batches, one, stage);
  };
  const auto passes = [](PipelineSchedule schedule, int stages, int virtual_stages = 1) {
    return plan::schedule_of(schedule, stages, virtual_stages).passes;
  };
  constexpr auto k1F1B = PipelineSchedule::one_forward_one_backward;
  const std::vector<Case> cases{{"one after another", one, 1, nullptr},
                                {"groups", one, 3, nullptr},
                                {"groups, delayed", one, 3, nullptr, true},
                                {"larger groups than steps", one, 9, nullptr},
                                {"GPipe on one stage", one, 1, gpipe},
                                {"groups on stages", uneven, 2, nullptr},
                                {"1F1B", even, 1, passes(k1F1B, 2)},
                                {"1F1B, uneven", uneven, 1, passes(k1F1B, 2)},
                                {"1F1B on four stages", four, 1, passes(k1F1B, 4)},
                                {"interleaved 1F1B", interleaved, 1, passes(PipelineSchedule::interleaved, 2, 2)},
                                {"ZB-H1", even, 1, passes(PipelineSchedule::zero_bubble, 2), true}};
  for (const Case& c : cases) {
    plan::LayoutChoices layout =
        testing::make_test_layout({.length = kLength, .documents = 1, .micro_batches = 6}, model);
    if (c.partition.stages > 1) layout.partition = c.partition;
    layout.schedule.group = c.in_flight;
    layout.schedule.passes = c.passes;
    for (nn::SavePolicy& policy : layout.policies) policy.delay_weight_gradients = c.delays;
    const std::vector<plan::PolicyCandidate> candidates =
        plan::list_policy_candidates(plan::derive(layout, model), model);
    EXPECT_GE(candidates.size(), 3u);
    for (const plan::PolicyCandidate& candidate : candidates) {
      SCOPED_TRACE(cat(c.name, ", checkpointing ", static_cast<int>(candidate.policy.checkpointing)));
      for (nn::SavePolicy& policy : layout.policies) policy.checkpointing = candidate.policy.checkpointing;
      std::int64_t most = 0;
      for (const plan::RankPlan& plan :
           plan::plan_stages(model, plan::derive(layout, model), step::Purpose::train, 0, true)) {
        most = std::max(most, most_stored(plan));
      }
      if (candidate.policy.checkpointing == Checkpointing::block) {  // less by the inputs of MLPs, which are not kept
        EXPECT_EQ(most, 0);
        EXPECT_LT(candidate.stored_bytes, 0);
        continue;
      }
      EXPECT_EQ(candidate.stored_bytes * model.blocks(), static_cast<double>(most));
    }
  }
}

// Offload of some blocks, and the optimizer's state.
TEST(Candidates, InHostMemoryNeedWhatTheirPlansNeed) {
  const models::Model model(description_of(4));
  const Recipe recipe = recipe_of(1);
  const plan::Forecaster planner = forecaster(recipe, model, 1, target_of(), {});
  Candidate candidate = planner.candidate();
  candidate.blocks[0] = candidate.blocks[1] = {.checkpointing = Checkpointing::selective, .offload = true};
  candidate.state = StatePlace::host;
  const plan::Forecast f = planner.forecast(candidate);
  plan::LayoutChoices layout = plan::layout_choices(recipe, model, 1, DType::bf16, 1, DeviceKind::cuda);
  for (std::size_t layer = 0; layer < 4; ++layer) {
    layout.policies[layer].checkpointing = Checkpointing::selective;
    layout.policies[layer].offload = true;
  }
  layout.host.state.assign(model.flats().size(), true);
  const plan::RankPlan plan = plan::plan_rank(model, plan::derive(layout, model), step::Purpose::train, 0);
  EXPECT_EQ(f.largest().costs.total_bytes, plan.bytes());
  EXPECT_EQ(f.largest().costs.pinned_bytes, plan.pinned_bytes());
  EXPECT_GT(f.host_needed(), planner.forecast().host_needed());
  EXPECT_GT(f.seconds, planner.forecast().seconds);
  candidate.weights = StatePlace::host;
  const plan::Forecast streamed = planner.forecast(candidate);
  layout.host.weights = layout.host.state;
  const plan::RankPlan less = plan::plan_rank(model, plan::derive(layout, model), step::Purpose::train, 0);
  EXPECT_EQ(streamed.largest().costs.total_bytes, less.bytes());
  EXPECT_EQ(streamed.largest().costs.pinned_bytes, less.pinned_bytes());
  EXPECT_EQ(less.parameter_bytes, 0);
  EXPECT_LT(less.bytes(), plan.bytes());
  EXPECT_GT(streamed.seconds, f.seconds);
}

// A capacity for which the optimizer's state in host memory is not enough.
TEST(Candidates, WeightsGoToHostMemoryIfTheyMust) {
  const models::Model model(description_of(8));
  Recipe recipe = recipe_of(1);
  const auto needed = [&](StatePlace state, StatePlace weights) {
    const plan::Forecaster planner = forecaster(recipe, model, 1, target_of(), {});
    Candidate candidate = planner.candidate();
    candidate.state = state, candidate.weights = weights;
    return planner.forecast(candidate).needed();
  };
  recipe.memory.activation_checkpointing = Checkpointing::full;
  const std::int64_t all = needed(StatePlace::device, StatePlace::device),
                     state = needed(StatePlace::host, StatePlace::device),
                     weights = needed(StatePlace::host, StatePlace::host);
  EXPECT_LT(state, all);
  EXPECT_LT(weights, state);
  recipe.memory.capacity = Bytes((state + weights) / 2);
  const std::vector<plan::Suggestion> suggestions = forecaster(recipe, model, 1, target_of(), {}).suggestions(3);
  ASSERT_FALSE(suggestions.empty());
  for (const plan::Suggestion& suggestion : suggestions) {
    EXPECT_NE(suggestion.flags().find("memory.weight_offload=true"), std::string::npos) << suggestion.flags();
    EXPECT_LE(suggestion.needed, recipe.memory.capacity->value());
    const plan::Forecast f = forecaster(suggestion.recipe, model, 1, target_of(), {}).forecast();
    EXPECT_EQ(f.needed(), suggestion.needed) << suggestion.flags();
    EXPECT_EQ(f.candidate.weights, StatePlace::host);
  }
}

// As few flats as let the recipe fit.
TEST(Candidates, AutoOffloadsTheStateThatDoesNotFit) {
  const models::Model model(description_of(8));
  Recipe recipe = recipe_of(1);
  recipe.memory.activation_checkpointing = Checkpointing::full;
  const auto forecast = [&](std::optional<bool> offload) {
    recipe.memory.optimizer_offload = offload;
    return forecaster(recipe, model, 1, target_of(), {}).forecast();
  };
  const plan::Forecast resident = forecast(false), all = forecast(true);
  ASSERT_LT(all.needed(), resident.needed());
  EXPECT_EQ(forecast(std::nullopt).needed(), resident.needed());
  int before = 0;
  for (const double part : {0.9, 0.6, 0.4}) {
    const auto more = static_cast<std::int64_t>(part * static_cast<double>(resident.needed() - all.needed()));
    recipe.memory.capacity = Bytes(all.needed() + more);
    const plan::Forecast f = forecast(std::nullopt);
    EXPECT_TRUE(f.fits()) << part;
    EXPECT_GT(f.offloaded_flats(), before);
    EXPECT_LT(f.offloaded_flats(), plan::trainable_flats(model, {}));
    before = f.offloaded_flats();
    EXPECT_EQ(std::ranges::count(f.layout.host.state, true), before);
    EXPECT_LT(f.host_needed(), all.host_needed());
    EXPECT_LE(f.seconds, all.seconds);
    Candidate fewer = f.candidate;
    fewer.state_flats = before - 1;
    EXPECT_FALSE(forecaster(recipe, model, 1, target_of(), {}).forecast(fewer).fits()) << part;
    // The choice as engine::choose_memory stores it.
    recipe.memory.offloaded_flats = before;
    EXPECT_EQ(forecast(std::nullopt).needed(), f.needed());
    recipe.memory.offloaded_flats.reset();
  }
  recipe.memory.capacity = Bytes(all.needed() - 1);
  EXPECT_FALSE(forecast(std::nullopt).fits());
}

// Of each pipeline stage as many: the first one needs the most memory.
TEST(Candidates, AutoOffloadsTheStateOfEachStage) {
  const models::Model model(description_of(8));
  Recipe recipe =
      override_recipe(recipe_of(4), {"parallel.pipeline_parallel_degree=2", "parallel.pipeline_partition=[4,4]",
                                     "memory.activation_checkpointing=full"});
  const auto forecast = [&](std::optional<bool> offload) {
    recipe.memory.optimizer_offload = offload;
    return forecaster(recipe, model, 2, target_of(), {}).forecast();
  };
  const plan::Forecast resident = forecast(false), all = forecast(true);
  recipe.memory.capacity = Bytes((resident.needed() + all.needed()) / 2);
  const plan::Forecast f = forecast(std::nullopt);
  EXPECT_TRUE(f.fits());
  ASSERT_GT(f.offloaded_flats(), 0);
  EXPECT_LT(f.offloaded_flats(), plan::trainable_flats(model, f.layout.partition));
  const auto stages_of = models::flat_stages(model, f.layout.partition);
  std::array<int, 2> flats{};
  for (std::size_t flat = 0; flat < stages_of.size(); ++flat) {
    if (f.layout.host.state[flat]) ++flats[static_cast<std::size_t>(stages_of[flat].front())];
  }
  EXPECT_EQ(flats, (std::array{f.offloaded_flats(), f.offloaded_flats()}));
  EXPECT_LT(f.host_needed(), all.host_needed());
}

bool offloads(const plan::Forecast& f) {
  return std::ranges::any_of(f.candidate.blocks, &plan::BlockPolicy::offload);
}

TEST(Candidates, AutoOffloadsIfItMust) {
  const models::Model model(description_of(8));
  Recipe recipe = recipe_of(1);
  recipe.data.sequence_length = 4096;
  recipe.memory.activation_checkpointing = Checkpointing::automatic;
  const plan::Forecast least = [&] {
    Recipe full = recipe;
    full.memory.activation_checkpointing = Checkpointing::block;
    return forecaster(full, model, 1, target_of(), {}).forecast();
  }();
  // That policy keeps the inputs of 8 blocks, 2 MiB each.
  recipe.memory.capacity = Bytes(least.needed() - (6 << 20));
  EXPECT_FALSE(forecaster(recipe, model, 1, target_of(), {}).forecast().fits());
  recipe.memory.activation_offload.reset();
  const plan::Forecast f = forecaster(recipe, model, 1, target_of(), {}).forecast();
  EXPECT_TRUE(f.fits());
  EXPECT_TRUE(f.chosen);
  EXPECT_TRUE(offloads(f));
  // Its plan is that of its candidate.
  const plan::Forecast again = forecaster(recipe, model, 1, target_of(), {}).forecast(f.candidate);
  EXPECT_EQ(again.needed(), f.needed());
  EXPECT_EQ(again.host_needed(), f.host_needed());
  // Without host memory for it, nothing is offloaded.
  const plan::Forecast none = forecaster(recipe, model, 1, target_of(f.host_needed() / 8), {}).forecast();
  EXPECT_FALSE(none.fits() && offloads(none));
  // If everything fits on the device, host memory is not used, as copies take time.
  recipe.memory.capacity.reset();
  EXPECT_FALSE(offloads(forecaster(recipe, model, 1, target_of(), {}).forecast()));
}

// Only GEMMs take time, as much forward as for the gradients of the input and of the weights, and messages none.
plan::Target constant_costs() {
  plan::Target target{.name = "constant", .capacity = std::int64_t{1} << 40, .copy = 1e300};
  target.bf16 = target.float32 = {.gemm = 1e6, .attention = {.forward = 1e300, .backward = 1e300}};
  target.links = {{.ranks = 0, .rate = 1e300}};
  return target;
}

constexpr int kStages = 4;

Parallelism staged(const plan::Schedule& schedule) {
  return {.mesh = {.pipeline = kStages}, .partition = {.stages = kStages, .ends = {1, 2, 3, 4}}, .schedule = schedule};
}

plan::Schedule one_forward_one_backward() {
  return plan::schedule_of(PipelineSchedule::one_forward_one_backward, kStages);
}

plan::Schedule zero_bubble() {
  return plan::schedule_of(PipelineSchedule::zero_bubble, kStages);
}

plan::Schedule all_forward_first() {
  return {.name = "GPipe", .passes = [](int stage, int micro_batches) {
            return step::grouped_passes(micro_batches, micro_batches, staged({}).partition, stage);
          }};
}

Recipe staged_recipe(int micro_batches) {
  Recipe recipe = recipe_of(micro_batches);
  recipe.parallel.pipeline_parallel_degree = kStages;
  return recipe;
}

// The schedule of stages is a choice. With constant costs ZB-H1 is idle for (p - 1)(F + B - W), 1F1B for
// (p - 1)(F + B + W). What each needs is what the plan of a layout needs that is made by hand.
TEST(Candidates, OfSchedulesArePricedAndChosen) {
  const models::Model model(testing::llama_description(
      {.width = 32, .heads = 4, .kv_heads = 2, .head_dim = 8, .inner = 48, .vocabulary = 16, .blocks = 4}));
  const Recipe recipe = staged_recipe(9);
  Choices choices{.parallelism = [](const Recipe&, int) { return staged(one_forward_one_backward()); }};
  const auto planner = [&](const Recipe& of) {
    return plan::Forecaster(of, model, kStages, constant_costs(), {.cores = 4, .memory = std::int64_t{1} << 50}, 1,
                            choices);
  };
  std::vector<plan::Forecast> forecasts;
  for (const plan::Schedule& schedule : {one_forward_one_backward(), zero_bubble()}) {
    const plan::Forecast& f =
        forecasts.emplace_back(planner(recipe).forecast(plan::candidate_of(recipe, staged(schedule), model.blocks())));
    plan::LayoutChoices layout = plan::layout_choices(recipe, model, kStages, f.layout.compute, 1, DeviceKind::cpu);
    layout.partition = staged({}).partition;
    layout.micro_batches = 9;
    layout.schedule = schedule;
    for (nn::SavePolicy& policy : layout.policies) policy.delay_weight_gradients = schedule.name == "zero_bubble";
    const auto plans = plan::plan_stages(model, plan::derive(layout, model), step::Purpose::train, 0, true);
    for (std::size_t s = 0; s < kStages; ++s) {
      EXPECT_EQ(f.stages[s].costs.total_bytes, plans[s].bytes()) << schedule.name << ", stage " << s;
    }
  }
  const auto busy = [](const plan::Forecast& f, std::size_t stage) { return f.stages[stage].time.busy.at("GEMM"); };
  const plan::Forecast &before = forecasts[0], &after = forecasts[1];
  const double pass = busy(before, 0) / 9 / 3;  // F = B = W
  EXPECT_NEAR(busy(after, 3), busy(before, 3), 1e-9 * busy(before, 3));
  EXPECT_NEAR(before.seconds, busy(before, 3) + 3 * 3 * pass, 1e-9 * before.seconds);
  EXPECT_NEAR(after.seconds, busy(after, 3) + 3 * pass, 1e-9 * after.seconds);
  EXPECT_NE(before.needed(), after.needed());

  // The planner suggests it, and keeps it as it chooses policies.
  choices.parallelisms = [](const Recipe&, int) {
    return std::vector<Parallelism>{staged(all_forward_first()), staged(zero_bubble())};
  };
  choices.changes = [](const Candidate& to) {
    return std::vector<plan::Change>{{"parallel.pipeline_schedule", to.parallelism.schedule.name}};
  };
  const std::vector<plan::Suggestion> suggestions = planner(recipe).suggestions(3);
  ASSERT_FALSE(suggestions.empty());
  EXPECT_EQ(suggestions.front().candidate.parallelism.schedule.name, "zero_bubble");
  EXPECT_NEAR(suggestions.front().tokens_per_second, after.tokens_per_second, 1e-9 * after.tokens_per_second);
  Recipe automatic = recipe;
  automatic.memory.activation_checkpointing = Checkpointing::automatic;
  choices.parallelism = [](const Recipe&, int) { return staged(zero_bubble()); };
  const plan::Forecast chosen = planner(automatic).forecast();
  EXPECT_TRUE(chosen.chosen);
  for (const plan::BlockPolicy& block : chosen.candidate.blocks) EXPECT_TRUE(block.delay_weight_gradients);
  EXPECT_NEAR(chosen.seconds, after.seconds, 1e-9 * after.seconds);
}

// A step that does not fit is forecast from as many micro-batches as its schedule has in flight, and as many again.
TEST(Candidates, OfSchedulesThatKeepAllMicroBatchesArePlannedWithAll) {
  EXPECT_EQ(one_forward_one_backward().in_flight(kStages, 16), kStages);
  EXPECT_EQ(all_forward_first().in_flight(kStages, 16), 16);
  EXPECT_EQ(plan::Schedule{}.in_flight(kStages, 16), 1);
  const models::Model model(description_of(4));
  Recipe recipe = staged_recipe(17);
  const auto needed = [&](const plan::Schedule& schedule) {
    const plan::Forecaster planner = forecaster(recipe, model, kStages, target_of(),
                                                {.parallelism = [&](const Recipe&, int) { return staged(schedule); }});
    return planner.forecast().needed();
  };
  const std::int64_t all = needed(all_forward_first());
  EXPECT_GT(all, needed(one_forward_one_backward()));
  recipe.memory.capacity = Bytes(all / 4);
  EXPECT_EQ(needed(all_forward_first()), all);
}

std::vector<plan::Change> name_changes(const Candidate& to) {
  std::vector<plan::Change> changes;
  if (to.parallelism.mesh.pipeline > 1) {
    changes.push_back({"parallel.pipeline_parallel_degree", cat(to.parallelism.mesh.pipeline)});
  }
  return changes;
}

TEST(Candidates, SuggestionsNameWhatNoRecipeSays) {
  const models::Model model(description_of(4));
  Recipe recipe = recipe_of(2);
  recipe.parallel.hybrid_shard_degree = 1;
  Choices choices = fillings();
  choices.changes = name_changes;
  choices.parallelisms = [](const Recipe&, int) {
    return std::vector<Parallelism>{{.mesh = {.pipeline = 2}, .partition = {.stages = 2, .ends = {2, 4}}}};
  };
  const std::int64_t needed = forecaster(recipe, model, 2, target_of(), {}).forecast().needed();
  recipe.memory.capacity = Bytes(needed * 3 / 4);
  const plan::Forecaster planner = forecaster(recipe, model, 2, target_of(), choices);
  ASSERT_FALSE(planner.forecast().fits());
  std::string flags;
  for (const plan::Suggestion& suggestion : planner.suggestions(20)) {
    flags += suggestion.flags() + "\n";
    const plan::Forecast f =
        forecaster(suggestion.recipe, model, 2, target_of(), choices).forecast(suggestion.candidate);
    EXPECT_TRUE(f.fits()) << suggestion.flags();
    EXPECT_EQ(f.needed(), suggestion.needed) << suggestion.flags();
    EXPECT_LE(suggestion.needed, recipe.memory.capacity->value());
  }
  for (const char* part : {"memory.optimizer_offload=true", "parallel.pipeline_parallel_degree=2",
                           "parallel.tensor_parallel_degree=2", "parallel.hybrid_shard_degree=0"}) {
    EXPECT_NE(flags.find(part), std::string::npos) << part << " in\n" << flags;
  }
  // Without these choices, the changed recipe says all of it.
  for (const plan::Suggestion& suggestion : forecaster(recipe, model, 2, target_of(), {}).suggestions(20)) {
    const plan::Forecast f = forecaster(suggestion.recipe, model, 2, target_of(), {}).forecast();
    EXPECT_EQ(f.needed(), suggestion.needed) << suggestion.flags();
  }
}

// The search extrapolates from models of few blocks, which are like the model: a frozen base stays frozen.
TEST(Candidates, SmallModelsAreLikeTheModel) {
  const models::Model model(testing::toy_with_adapters(0), [](const nn::Param& param) {
    nn::FlatSpec spec = nn::common_domain(param);
    spec.trainable = param.name.find("lora_") != std::string::npos;
    return spec;
  });
  const auto small = plan::RankModels(model).of({}, 0, 1);
  EXPECT_EQ(small->blocks(), 1);
  EXPECT_EQ(plan::RankModels(model).of({}, 0, model.blocks()).get(), &model);
  EXPECT_LT(small->trainable_parameters(), small->parameters() / 2);
  EXPECT_GT(small->trainable_parameters(), 0);
  for (const nn::Flat& flat : small->flats()) {
    for (const nn::Param& param : flat.params()) {
      EXPECT_EQ(flat.spec().trainable, param.name.find("lora_") != std::string::npos) << param.name;
    }
  }
}

}  // namespace candidate_test
}  // namespace hawser
