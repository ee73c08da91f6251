// Plans of pipeline stages: those of all stages are checked together.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "plan/cost_model.h"
#include "plan/pipeline_form.h"
#include "program/conversation.h"
#include "program/order.h"
#include "support.h"

namespace hawser {
namespace pipeline_test {

using models::PipelinePartition;
using step::Pass;

enum class Schedule { grouped, one_forward_one_backward, zero_bubble };

// As many blocks a stage as fit; the last stage may have only the head.
PipelinePartition even(int stages, int blocks) {
  PipelinePartition partition{.stages = stages};
  for (int stage = 1; stage <= stages; ++stage) {
    partition.ends.push_back(std::min(blocks, stage * ((blocks + stages - 1) / stages)));
  }
  partition.ends.back() = blocks;
  return partition;
}

plan::LayoutChoices staged(const models::Model& model, const PipelinePartition& partition, int micro_batches,
                           Schedule schedule, comm::MeshSizes mesh = {}) {
  testing::LayoutOptions options{.mesh = std::move(mesh), .length = 32, .micro_batches = micro_batches};
  options.delay_weight_gradients = schedule == Schedule::zero_bubble;
  plan::LayoutChoices layout = testing::make_test_layout(options, model);
  layout.partition = partition;
  if (schedule == Schedule::grouped) {
    layout.schedule.group = micro_batches;
  } else {
    layout.schedule.passes =
        schedule == Schedule::zero_bubble
            ? plan::schedule_of(PipelineSchedule::zero_bubble, partition.stages).passes
            : plan::schedule_of(PipelineSchedule::one_forward_one_backward, partition.stages).passes;
  }
  return layout;
}

std::string rejection(const models::Model& model, const plan::LayoutChoices& layout) {
  try {
    plan::plan_stages(model, plan::derive(layout, model), step::Purpose::train, 0, /*optimizer=*/true);
  } catch (const InternalError& error) {
    return error.what();
  }
  return "";
}

std::vector<Pass> in_order(int stage, const std::vector<std::pair<Pass::Kind, int>>& passes) {
  std::vector<Pass> out;
  for (const auto& [kind, micro_batch] : passes) out.push_back({kind, micro_batch, stage});
  return out;
}

TEST(PipelinePlan, EveryScheduleIsCheckedOverAllStages) {
  for (const int stages : {1, 2, 3, 4, 8, 16}) {
    // Tied: the embedding's gradient is summed over the first and the last stage.
    const models::Model model(testing::llama_description({.width = 16,
                                                          .heads = 2,
                                                          .kv_heads = 1,
                                                          .head_dim = 8,
                                                          .inner = 24,
                                                          .vocabulary = 40,
                                                          .blocks = stages + 1,
                                                          .tied = stages % 2 == 0}));
    for (const int micro_batches : {1, stages, std::min(3 * stages + 1, 13)}) {
      for (const Schedule schedule : {Schedule::grouped, Schedule::one_forward_one_backward, Schedule::zero_bubble}) {
        const comm::MeshSizes mesh = micro_batches == 1 ? comm::MeshSizes{.context = 2} : comm::MeshSizes{.shard = 2};
        const plan::LayoutChoices layout = staged(model, even(stages, stages + 1), micro_batches, schedule, mesh);
        EXPECT_EQ(rejection(model, layout), "")
            << stages << " stages, " << micro_batches << " micro-batches, schedule " << static_cast<int>(schedule);
      }
    }
  }
  const models::Model model(testing::toy_description());
  const PipelinePartition interleaved{.stages = 2, .ends = {0, 1, 1, 2}};
  EXPECT_EQ(rejection(model, staged(model, interleaved, 4, Schedule::grouped)), "");
}

// Stage s of 1F1B has at most min(micro-batches, stages - s) micro-batches between forward and backward: as many
// buffers of each saved tensor are live at once.
TEST(PipelinePlan, LiveActivationsOfOneForwardOneBackward) {
  constexpr int kStages = 4;
  const models::Model model(testing::llama_description(
      {.width = 16, .heads = 2, .kv_heads = 1, .head_dim = 8, .inner = 24, .vocabulary = 40, .blocks = kStages}));
  for (const int micro_batches : {1, 3, 9}) {
    const plan::LayoutChoices layout =
        staged(model, even(kStages, kStages), micro_batches, Schedule::one_forward_one_backward);
    const auto plans = plan::plan_stages(model, plan::derive(layout, model), step::Purpose::train, 0, true);
    for (int stage = 0; stage < kStages; ++stage) {
      const plan::RankPlan& plan = plans[static_cast<std::size_t>(stage)];
      const program::Order order(plan.trace);
      const program::Lifetimes lifetimes(plan.trace, order, plan.buffers.buffers);
      // By layer and saved tensor: the first and last items of its buffers.
      std::map<std::pair<int, int>, std::vector<std::pair<int, int>>> live;
      for (const auto& [key, buffer] : plan.buffers.index) {
        if (key.role != step::Role::saved || !lifetimes.used(buffer)) continue;
        const int layer = plan.program.instructions[static_cast<std::size_t>(key.a)].layer;
        live[{layer, key.b}].emplace_back(lifetimes.first_item(buffer), lifetimes.last_item(buffer));
      }
      ASSERT_FALSE(live.empty());
      for (const auto& [tensor, spans] : live) {
        EXPECT_EQ(static_cast<int>(spans.size()), micro_batches);
        std::ptrdiff_t most = 0;
        for (const auto& [at, unused] : spans) {
          most = std::max(most, std::ranges::count_if(spans, [at = at](const auto& span) {
                            return span.first <= at && at <= span.second;
                          }));
        }
        EXPECT_LE(most, std::min(micro_batches, kStages - stage)) << "stage " << stage << ", layer " << tensor.first;
      }
    }
  }
}

// What a stage sends is free when the gradient that follows from it has arrived: more micro-batches than are in flight
// take no memory but their tables'.
TEST(PipelinePlan, SentActivationsDoNotAccumulate) {
  const models::Model model(testing::llama_description(
      {.width = 16, .heads = 2, .kv_heads = 1, .head_dim = 8, .inner = 24, .vocabulary = 40, .blocks = 4}));
  const auto bytes_of = [&](int stages, int micro_batches) {
    std::vector<std::int64_t> bytes;
    const plan::LayoutChoices layout =
        staged(model, even(stages, 4), micro_batches, Schedule::one_forward_one_backward);
    for (const plan::RankPlan& plan :
         plan::plan_stages(model, plan::derive(layout, model), step::Purpose::train, 0, true)) {
      std::int64_t tables = 0;
      for (const auto& [key, buffer] : plan.buffers.index) {
        const program::Buffer& b = plan.buffers.buffers[static_cast<std::size_t>(buffer)];
        if (key.role == step::Role::batch) tables += round_up(b.bytes, Device::kAlignment);
      }
      bytes.push_back(plan.buffers.placement.live_bytes - tables);
    }
    return bytes;
  };
  for (const int stages : {2, 4}) {
    const std::vector<std::int64_t> few = bytes_of(stages, 2 * stages), many = bytes_of(stages, 4 * stages);
    for (std::size_t stage = 0; stage < few.size(); ++stage) {
      EXPECT_LE(many[stage], few[stage]) << "stage " << stage << " of " << stages;
    }
  }
}

// Blocks of experts, all or only the first and the last.
models::Model with_experts(int blocks, bool all) {
  models::ModelDescription d = testing::llama_description(
      {.width = 16, .heads = 2, .kv_heads = 1, .head_dim = 8, .inner = 24, .vocabulary = 40, .blocks = blocks});
  for (int block = 0; block < blocks; ++block) {
    if (all || block == 0 || block == blocks - 1) testing::set_experts(d, block, 4, 2);
  }
  return models::Model(std::move(d));
}

// The routers' losses couple the layers of all stages.
TEST(PipelinePlan, SumsOverStagesAreCheckedOverAllStages) {
  int turn = 0;  // pairwise
  for (const int stages : {2, 3, 4, 8}) {
    for (const int micro_batches : {1, stages, std::min(3 * stages + 1, 13)}) {
      const models::Model model = with_experts(stages + 1, turn % 2 == 0);
      const comm::MeshSizes mesh = turn % 4 < 2 ? comm::MeshSizes{.context = 2} : comm::MeshSizes{.shard = 2};
      const auto schedule = static_cast<Schedule>(turn++ % 3);
      EXPECT_EQ(rejection(model, staged(model, even(stages, stages + 1), micro_batches, schedule, mesh)), "")
          << stages << " stages, " << micro_batches << " micro-batches, schedule " << static_cast<int>(schedule);
    }
    ++turn;
  }
  const models::Model model = with_experts(2, true);
  EXPECT_EQ(rejection(model, staged(model, {.stages = 2, .ends = {0, 1, 1, 2}}, 4, Schedule::grouped)), "");
  // Equal sizes: only the labels tell that one stage sums another micro-batch.
  auto plans =
      plan::plan_stages(model, plan::derive(staged(model, {.stages = 2, .ends = {1, 2}}, 2, Schedule::grouped), model),
                        step::Purpose::train, 0, true);
  std::vector<CollectiveNote*> sums;
  for (TraceItem& item : plans[1].trace.items) {
    if (item.instruction < 0) continue;
    const program::Op op = plans[1].program.instructions[static_cast<std::size_t>(item.instruction)].op;
    const bool sum = item.kind == TraceItem::Kind::work && op == program::Op::auxiliary_loss;
    if (sum && item.record.collective.kind == CollectiveKind::all_reduce) sums.push_back(&item.record.collective);
  }
  ASSERT_EQ(sums.size(), 2u);
  std::swap(sums[0]->label, sums[1]->label);
  try {
    plan::check_plans({&plans[0], &plans[1]}, {0, 1});
    ADD_FAILURE() << "sums of different micro-batches are accepted";
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("collective 0 of loss"), std::string::npos) << error.what();
  }
}

// Seconds of a step of all stages, where a pass takes constant time and messages take none.
double constant_costs(const std::vector<plan::RankPlan>& plans, double forward, double backward, double weights) {
  std::vector<program::RankTrace> ranks;
  std::vector<std::vector<double>> seconds;  // by rank and item
  for (std::size_t stage = 0; stage < plans.size(); ++stage) {
    const plan::RankPlan& plan = plans[stage];
    ranks.push_back({.rank = static_cast<int>(stage), .trace = &plan.trace});
    seconds.emplace_back(plan.trace.items.size(), 0);
    std::vector<int> charged(plan.program.instructions.size(), 0);
    for (std::size_t i = 0; i < plan.trace.items.size(); ++i) {
      const TraceItem& item = plan.trace.items[i];
      if (item.kind != TraceItem::Kind::work || item.instruction < 0) continue;
      if (charged[static_cast<std::size_t>(item.instruction)]++ > 0) continue;
      const program::Op op = plan.program.instructions[static_cast<std::size_t>(item.instruction)].op;
      const double pass = op == program::Op::forward           ? forward
                          : op == program::Op::backward        ? backward
                          : op == program::Op::backward_weight ? weights
                                                               : 0;
      seconds.back()[i] = pass / 2;  // a stage has one block: two layers
    }
  }
  const std::vector<double> ends = program::end_times(
      ranks, [&](std::size_t rank, int item) { return seconds[rank][static_cast<std::size_t>(item)]; });
  return *std::ranges::max_element(ends);
}

// The bubbles of the papers: (p - 1)(F + B + W) of 1F1B (arXiv 2104.04473, with B + W in one backward pass) and
// (p - 1)(F + B - W) of ZB-H1 (arXiv 2401.10241), where B is the gradient of the input and W that of the weights.
TEST(PipelinePlan, BubblesAreThoseOfThePapers) {
  for (const int stages : {2, 4, 8}) {
    const models::Model model(testing::llama_description(
        {.width = 16, .heads = 2, .kv_heads = 1, .head_dim = 8, .inner = 24, .vocabulary = 40, .blocks = stages}));
    const int micro_batches = 2 * stages + 1;
    const auto plans = [&](Schedule schedule) {
      return plan::plan_stages(model, plan::derive(staged(model, even(stages, stages), micro_batches, schedule), model),
                               step::Purpose::train, 0, true);
    };
    const double f = 1.0, b = 1.25, w = 0.75;
    EXPECT_NEAR(constant_costs(plans(Schedule::one_forward_one_backward), f, b + w, 0),
                (micro_batches + stages - 1) * (f + b + w), 1e-9)
        << stages;
    EXPECT_NEAR(constant_costs(plans(Schedule::zero_bubble), 1, 1, 1), micro_batches * 3 + (stages - 1), 1e-9)
        << stages;
  }
}

// Interleaved 1F1B with v model chunks a stage neither deadlocks nor waits for a message of an earlier pass: its bubble
// is (p - 1)(F + B) of one model chunk, 1/v of 1F1B's (arXiv 2104.04473).
TEST(PipelinePlan, TheBubbleOfInterleavedStagesIsThatOfThePaper) {
  for (const auto& [stages, model_chunks] : {std::pair{2, 2}, {2, 4}, {4, 2}, {4, 3}, {8, 2}}) {
    const int blocks = stages * model_chunks;
    const models::Model model(testing::llama_description(
        {.width = 16, .heads = 2, .kv_heads = 1, .head_dim = 8, .inner = 24, .vocabulary = 40, .blocks = blocks}));
    PipelinePartition partition{.stages = stages};
    for (int block = 1; block <= blocks; ++block) partition.ends.push_back(block);
    for (const int micro_batches : {stages, 2 * stages, 3 * stages}) {
      plan::LayoutChoices layout = staged(model, partition, micro_batches, Schedule::one_forward_one_backward);
      layout.schedule.passes = plan::schedule_of(PipelineSchedule::interleaved, stages, model_chunks).passes;
      ASSERT_EQ(rejection(model, layout), "")
          << stages << " stages, " << model_chunks << " model chunks, " << micro_batches;
      const double seconds =
          constant_costs(plan::plan_stages(model, plan::derive(layout, model), step::Purpose::train, 0, true), 1, 2, 0);
      EXPECT_NEAR(seconds, (micro_batches * model_chunks + stages - 1) * 3, 1e-9)
          << stages << " stages, " << model_chunks << " model chunks, " << micro_batches;
    }
  }
}

// Forward-only steps have a bubble of (p - 1) F of one model chunk, and routers' sums over the stages do not add to it.
TEST(PipelinePlan, StagesEvaluateSeveralMicroBatchesAtOnce) {
  for (const auto& [stages, model_chunks] : {std::pair{2, 1}, {4, 1}, {2, 2}, {4, 2}}) {
    const int blocks = stages * model_chunks;
    for (const bool experts : {false, true}) {
      const models::Model dense(testing::llama_description({.blocks = blocks})), routed = with_experts(blocks, true);
      const models::Model& model = experts ? routed : dense;
      PipelinePartition partition{.stages = stages};
      for (int block = 1; block <= blocks; ++block) partition.ends.push_back(block);
      for (const int micro_batches : {1, 2 * stages, 3 * stages + 1}) {
        plan::LayoutChoices layout = staged(model, partition, 1, Schedule::grouped);
        layout.forward_micro_batches = micro_batches;
        const auto plans = plan::plan_stages(model, plan::derive(layout, model), step::Purpose::loss, 0, false);
        if (model_chunks > 1 && micro_batches % stages != 0) continue;  // the last group has idle passes
        EXPECT_NEAR(constant_costs(plans, 1, 0, 0), micro_batches * model_chunks + stages - 1, 1e-9)
            << stages << " stages, " << model_chunks << " model chunks, " << micro_batches << " micro-batches";
      }
    }
  }
}

// The sums over stages do not serialise the pipeline: the bubbles are those without them.
TEST(PipelinePlan, SumsOverStagesTakeNoTimeOfThePasses) {
  for (const int stages : {2, 4}) {
    const models::Model model = with_experts(stages, true);
    for (const int micro_batches : {1, stages, 3 * stages + 1}) {
      const auto plans = [&](Schedule schedule) {
        return plan::plan_stages(model,
                                 plan::derive(staged(model, even(stages, stages), micro_batches, schedule), model),
                                 step::Purpose::train, 0, true);
      };
      EXPECT_NEAR(constant_costs(plans(Schedule::one_forward_one_backward), 1, 2, 0), (micro_batches + stages - 1) * 3,
                  1e-9)
          << stages << " stages, " << micro_batches << " micro-batches";
      if (micro_batches < stages) continue;
      EXPECT_NEAR(constant_costs(plans(Schedule::zero_bubble), 1, 1, 1), micro_batches * 3 + (stages - 1), 1e-9)
          << stages << " stages, " << micro_batches << " micro-batches";
    }
  }
}

// A stage waits for the others: its own trace alone is much faster than the step of all.
TEST(PipelinePlan, StagesAreTimedTogether) {
  const models::Model model(testing::llama_description({.blocks = 4}));
  const plan::Target target = plan::load_target("h100");
  const auto plans =
      plan::plan_stages(model, plan::derive(staged(model, even(4, 4), 1, Schedule::one_forward_one_backward), model),
                        step::Purpose::train, 0, true);
  std::vector<program::RankTrace> ranks;
  double alone = 0;
  for (std::size_t stage = 0; stage < plans.size(); ++stage) {
    ranks.push_back({.rank = static_cast<int>(stage), .trace = &plans[stage].trace});
    alone = std::max(alone, plan::step_time(plans[stage].trace, target, DType::f32, 1).seconds);
  }
  const std::vector<plan::StepTime> together = plan::step_times(ranks, target, DType::f32, 1);
  for (const plan::StepTime& time : together) EXPECT_GT(time.seconds, 2.5 * alone);
}

// What each stage does alone is without defect; together they are wrong.
TEST(PipelinePlan, StagesThatDoNotMatchAreRejectedTogether) {
  const models::Model model(testing::toy_description());
  plan::LayoutChoices layout = staged(model, {.stages = 2, .ends = {1, 2}}, 2, Schedule::one_forward_one_backward);
  using enum Pass::Kind;
  const auto passes = [&](const std::vector<std::pair<Pass::Kind, int>>& first,
                          const std::vector<std::pair<Pass::Kind, int>>& second) {
    layout.schedule.passes = [=](int stage, int) { return in_order(stage, stage == 0 ? first : second); };
    for (const int stage : {0, 1}) {
      const plan::RankPlan alone = plan::plan_rank(model, plan::derive(layout, model), step::Purpose::train, stage);
      EXPECT_NO_THROW(plan::check_plans({&alone}, {stage}));
    }
    return rejection(model, layout);
  };
  EXPECT_EQ(passes({{forward, 0}, {forward, 1}, {backward, 0}, {backward, 1}},
                   {{forward, 0}, {backward, 0}, {forward, 1}, {backward, 1}}),
            "");
  // Equal sizes: only the labels tell that micro-batch 1 arrives where 0 is expected.
  const std::string other = passes({{forward, 0}, {forward, 1}, {backward, 0}, {backward, 1}},
                                   {{forward, 1}, {backward, 1}, {forward, 0}, {backward, 0}});
  EXPECT_NE(other.find("message 0 from rank 0 to rank 1"), std::string::npos) << other;
  // The first stage waits for a gradient that the second computes after the next micro-batch.
  const std::string deadlock = passes({{forward, 0}, {backward, 0}, {forward, 1}, {backward, 1}},
                                      {{forward, 0}, {forward, 1}, {backward, 0}, {backward, 1}});
  EXPECT_NE(deadlock.find("deadlock: rank 0"), std::string::npos) << deadlock;
}

// A stage has one stream for all that it sends, and one for all that it receives. The first sends the activations of
// micro-batch 1 before a gradient of micro-batch 0, the second receives them the other way round.
TEST(PipelinePlan, SendsThatWaitForEachOtherAreRejected) {
  const models::Model model(testing::toy_description(true, 4));
  plan::LayoutChoices layout =
      staged(model, {.stages = 2, .ends = {1, 2, 3, 4}}, 2, Schedule::one_forward_one_backward);
  using enum Pass::Kind;
  const auto rejected = [&](const std::vector<Pass>& first) {
    layout.schedule.passes = [=](int stage, int) {
      const std::vector<Pass> second = {{forward, 0, 1}, {forward, 0, 3}, {backward, 0, 3}, {backward, 0, 1},
                                        {forward, 1, 1}, {forward, 1, 3}, {backward, 1, 3}, {backward, 1, 1}};
      return stage == 0 ? first : second;
    };
    return rejection(model, layout);
  };
  EXPECT_EQ(rejected({{forward, 0, 0},
                      {forward, 0, 2},
                      {backward, 0, 2},
                      {forward, 1, 0},
                      {backward, 0, 0},
                      {forward, 1, 2},
                      {backward, 1, 2},
                      {backward, 1, 0}}),
            "");
  const std::string deadlock = rejected({{forward, 0, 0},
                                         {forward, 0, 2},
                                         {forward, 1, 0},
                                         {backward, 0, 2},
                                         {backward, 0, 0},
                                         {forward, 1, 2},
                                         {backward, 1, 2},
                                         {backward, 1, 0}});
  EXPECT_NE(deadlock.find("deadlock"), std::string::npos) << deadlock;
}

TEST(PipelinePlan, SchedulesWithoutAPassAreRejected) {
  const models::Model model(testing::toy_description());
  plan::LayoutChoices layout = staged(model, {.stages = 2, .ends = {1, 2}}, 1, Schedule::one_forward_one_backward);
  using enum Pass::Kind;
  const auto with = [&](const std::vector<Pass>& of_stage_0) {
    layout.schedule.passes = [=](int stage, int) {
      return stage == 0 ? of_stage_0 : in_order(1, {{forward, 0}, {backward, 0}});
    };
    return rejection(model, layout);
  };
  EXPECT_EQ(with(in_order(0, {{forward, 0}, {backward, 0}})), "");
  EXPECT_NE(with(in_order(0, {{forward, 0}})).find("a pass is missing"), std::string::npos);
  EXPECT_NE(with(in_order(0, {{backward, 0}, {forward, 0}})).find("has no forward pass"), std::string::npos);
  EXPECT_NE(with(in_order(0, {{forward, 0}, {forward, 0}})).find("two forward passes"), std::string::npos);
  EXPECT_NE(with(in_order(1, {{forward, 0}})).find("stage 0 has no model chunk 1"), std::string::npos);
  layout.policies.front().delay_weight_gradients = true;
  EXPECT_NE(with(in_order(0, {{forward, 0}, {backward, 0}})).find("a pass is missing"), std::string::npos);
}

TEST(PipelinePlan, RejectsPartitionsThatDoNotCoverTheModel) {
  const models::Model model(testing::toy_description());
  const auto check = [&](const PipelinePartition& partition) { models::check_partition(model, partition); };
  EXPECT_NO_THROW(check({.stages = 2, .ends = {0, 2}}));
  EXPECT_THROW(check({.stages = 2, .ends = {1}}), InternalError);
  EXPECT_THROW(check({.stages = 2, .ends = {1, 1}}), InternalError);
  EXPECT_THROW(check({.stages = 2, .ends = {2, 1}}), InternalError);
  EXPECT_THROW(check({.stages = 2}), InternalError);
  plan::LayoutChoices layout = testing::make_test_layout({}, model);
  layout.mesh.pipeline = 2;  // without a partition
  EXPECT_NE(rejection(model, layout).find("a mesh of 2 pipeline stages for a model over 1"), std::string::npos);
}

// With one wait removed, more than a third of the plans are rejected; the others are still safe, because another wait
// implies the removed one.
TEST(PipelinePlan, AStageWithOneEventRemovedIsRejected) {
  const models::Model model(testing::toy_description());
  const plan::LayoutChoices layout =
      staged(model, {.stages = 2, .ends = {1, 2}}, 2, Schedule::zero_bubble, {.shard = 2});
  const auto good = plan::plan_stages(model, plan::derive(layout, model), step::Purpose::train, 0, true);
  int waits = 0, rejected = 0;
  for (std::size_t stage = 0; stage < good.size(); ++stage) {
    for (std::size_t i = 0; i < good[stage].trace.items.size(); ++i) {
      if (good[stage].trace.items[i].kind != TraceItem::Kind::wait) continue;
      ++waits;
      std::vector<plan::RankPlan> plans = good;
      plans[stage].trace.items[i].kind = TraceItem::Kind::record_event;  // an unused event: keeps the indices
      plans[stage].trace.items[i].target = -1;
      try {
        plan::check_plans({&plans[0], &plans[1]}, {0, 2});
      } catch (const InternalError&) {
        ++rejected;
      }
    }
  }
  std::printf("%d waits: %d rejected without them\n", waits, rejected);
  EXPECT_GT(rejected, waits / 3);
}

}  // namespace pipeline_test
}  // namespace hawser
