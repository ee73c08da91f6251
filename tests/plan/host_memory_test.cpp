// Host memory in forecasts: what all ranks of a machine need together, and its refusal.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "plan/pipeline_form.h"
#include "plan/report.h"
#include "plan/run_plan.h"
#include "support.h"
#include "support/toy_slices.h"

namespace hawser {
namespace host_memory_test {

models::Model model_of() {
  return models::Model(testing::llama_description({.vocabulary = 64, .blocks = 4}));
}

Recipe recipe_of(int data_ranks) {
  Recipe recipe;
  recipe.name = "host";
  recipe.file = "recipe.yaml";
  recipe.data.sequence_length = 64;
  recipe.data.pack = Packing::chunks;
  recipe.train.global_batch_size = data_ranks;
  recipe.parallel.hybrid_shard_degree = 1;
  return recipe;
}

// GPUs, `ranks` a machine, whose host has `memory` bytes.
plan::Target target_of(int ranks, std::int64_t memory) {
  plan::Target target = plan::load_target("h200");
  target.host.memory = memory;
  target.host.process = 1 << 20;
  target.links.front().ranks = ranks;
  return target;
}

// Master weights and moments are in host memory: no recipe says so yet.
void put_state_on_host(plan::LayoutChoices& layout, const models::Model& model) {
  layout.host.state.assign(model.flats().size(), true);
}

plan::Forecast forecast_of(const Recipe& recipe, const models::Model& model, int world, const plan::Target& target,
                           const plan::Machine& machine = {}) {
  return plan::Forecaster(recipe, model, world, target, machine, 1, put_state_on_host).forecast();
}

TEST(HostMemory, IsThatOfTheMachineWithTheMostNeed) {
  const plan::HostMemory four{.ranks = 4, .process = 10};
  const comm::MeshSizes two_stages{.shard = 4, .pipeline = 2};
  EXPECT_EQ(four.needed(two_stages, {100, 1000}), 4 * 1010);
  const plan::HostMemory three{.ranks = 3, .process = 10};  // ranks 0-2, 3-5 of both stages, 6-7
  EXPECT_EQ(three.needed(two_stages, {1000, 100}), 3 * 1010);
  EXPECT_EQ(three.needed(two_stages, {100, 1000}), 2 * 1010 + 110);
  EXPECT_EQ((plan::HostMemory{.ranks = 8}.needed(two_stages, {1, 2})), 12);
  EXPECT_EQ((plan::HostMemory{.ranks = 8}.needed({.shard = 2}, {5})), 10);
  // Stages of 6 ranks: ranks 0-4 of the first stage, its last one with 5-9, and 10-11, the last machine.
  const plan::HostMemory five{.ranks = 5, .process = 10};
  const comm::MeshSizes tensor{.tensor = 2, .shard = 3, .pipeline = 2};
  EXPECT_EQ(five.needed(tensor, {1000, 300}), 5 * 1010);
  EXPECT_EQ(five.needed(tensor, {400, 500}), 410 + 4 * 510);
  EXPECT_EQ((plan::HostMemory{.ranks = 10}.needed(tensor, {1, 100})), 6 * 1 + 4 * 100);
  // Four stages of 2 ranks, of which one machine has the first three in part.
  const comm::MeshSizes four_stages{.tensor = 2, .pipeline = 4};
  EXPECT_EQ((plan::HostMemory{.ranks = 5}.needed(four_stages, {1, 10, 100, 5})), 2 * 1 + 2 * 10 + 100);
  EXPECT_EQ((plan::HostMemory{.ranks = 5}.needed(four_stages, {1, 10, 100, 1000})), 100 + 2 * 1000);
}

TEST(HostMemory, IsThatOfTheTargetOrOfThisMachine) {
  const plan::Target target = target_of(8, 1000);
  const auto planned = plan::host_memory_of({}, target, {.memory = 7}, 16);
  EXPECT_EQ(planned.capacity, 1000);
  EXPECT_EQ(planned.ranks, 8);
  EXPECT_EQ(plan::host_memory_of({}, target, {.memory = 7}, 4).ranks, 4);
  const auto here = plan::host_memory_of({}, target, {.memory = 7, .ranks = 2}, 16);
  EXPECT_EQ(here.capacity, 7);
  EXPECT_EQ(here.ranks, 2);
  EXPECT_EQ(plan::host_memory_of({}, plan::load_target("cpu"), {.memory = 7, .ranks = 2}, 2).capacity, 0);
  EXPECT_GT(plan::load_target("h200").host.memory, 0);
  EXPECT_GT(plan::load_target("h100").host.process, 0);
}

// On the machine that plans only if its GPUs are those of the target, and enough.
TEST(HostMemory, OfAPlanIsThatOfTheMachinesThatItIsFor) {
  const plan::Target target = target_of(8, 1000);
  const auto ranks = [&](int world, const char* own, int gpus) {
    return plan::planning_machine(target, world, own, gpus).ranks;
  };
  EXPECT_EQ(ranks(2, "h200", 2), 2);
  EXPECT_EQ(ranks(4, "h200", 8), 4);
  EXPECT_EQ(ranks(64, "h200", 2), 0);  // 8 on each machine of the target
  EXPECT_EQ(ranks(2, "h100", 2), 0);
  EXPECT_EQ(plan::planning_machine(plan::load_target("cpu"), 2, "h200", 8).ranks, 0);
  // Of a larger run than one that is planned.
  const auto of_run = [&](int ranks_here, int of, int world) {
    return plan::machine_of_run({.memory = 7, .ranks = ranks_here}, target, of, world);
  };
  EXPECT_EQ(of_run(4, 4, 6).ranks, 6);
  EXPECT_EQ(of_run(4, 4, 16).ranks, 8);
  EXPECT_EQ(of_run(4, 4, 16).memory, 7);
  EXPECT_EQ(of_run(16, 16, 32).ranks, 16);
  EXPECT_EQ(of_run(4, 8, 32).ranks, 4);  // on two machines, with 4 each
  EXPECT_EQ(of_run(4, 4, 2).ranks, 2);
  EXPECT_EQ(of_run(0, 4, 16).ranks, 0);
}

// Twice as many ranks are on the same machine, and their state takes as much; four times as many are on two.
TEST(HostMemory, MoreRanksAreSuggestedWhereTheirMachinesHaveTheMemory) {
  const models::Model model = model_of();
  Recipe recipe = recipe_of(4);
  recipe.parallel.hybrid_shard_degree = 0;
  plan::Target target = target_of(8, 0);
  target.host.process = 0;
  const std::int64_t four = forecast_of(recipe, model, 4, target).host_needed();
  const plan::Forecaster planner(recipe, model, 4, target, {.memory = four * 4 / 5, .ranks = 4}, 1, put_state_on_host);
  EXPECT_FALSE(planner.forecast().host_fits());
  const auto more = planner.fitting_ranks();
  ASSERT_TRUE(more);
  EXPECT_EQ(more->ranks, 16);
}

// Stages of four ranks of different sizes, on machines of five: what the plan of each rank pins, machine by machine.
TEST(HostMemory, OfTensorRanksAndStagesIsTheSumOfTheirPlans) {
  const models::Model model = model_of();
  const plan::RankModels part(model);
  plan::Choices choices{.parallelism =
                            [](const Recipe&, int) {
                              return plan::Parallelism{.mesh = {.tensor = 2, .shard = 2, .pipeline = 3},
                                                       .partition = {.stages = 3, .ends = {2, 3, 4}}};
                            },
                        .complete =
                            [](plan::LayoutChoices& layout, const models::Model& of) {
                              put_state_on_host(layout, of);
                              layout.schedule.passes =
                                  plan::schedule_of(PipelineSchedule::one_forward_one_backward, 3).passes;
                            }};
  const plan::Forecast f =
      plan::Forecaster(recipe_of(4), model, 12, target_of(5, 0), {}, 1, std::move(choices)).forecast();
  std::vector<std::int64_t> machines(3);
  for (int rank = 0; rank < 12; ++rank) {
    const plan::RankPlan plan =
        plan::plan_rank(*part.of(f.layout, rank, model.blocks()), f.layout, step::Purpose::train, rank);
    machines[static_cast<std::size_t>(rank / 5)] += plan.pinned_bytes() + (1 << 20);
  }
  EXPECT_EQ(f.host_needed(), std::ranges::max(machines));
  EXPECT_NE(f.stages[0].costs.pinned_bytes, f.stages[1].costs.pinned_bytes);
}

// One rank of eight would fit.
TEST(HostMemory, AllRanksOfAMachineAreCounted) {
  const models::Model model = model_of();
  const Recipe recipe = recipe_of(16);
  const plan::Forecast f = forecast_of(recipe, model, 16, target_of(8, 0));
  EXPECT_TRUE(f.fits());  // no limit is known
  const std::int64_t rank = f.largest().costs.pinned_bytes + (1 << 20);
  EXPECT_GT(f.largest().costs.pinned_bytes, 12 * model.parameters());
  EXPECT_EQ(f.host_needed(), 8 * rank);
  EXPECT_TRUE(forecast_of(recipe, model, 16, target_of(8, 8 * rank)).fits());
  const plan::Forecast tight = forecast_of(recipe, model, 16, target_of(8, 8 * rank - 1));
  EXPECT_LE(tight.needed(), tight.capacity);
  EXPECT_FALSE(tight.fits());
  const std::string line = plan::rejection(recipe, tight, {});
  EXPECT_TRUE(line.starts_with(cat("recipe.yaml: does not fit in host memory (expected at most ", 8 * rank - 1,
                                   " bytes for the 8 ranks of a machine, got ", 8 * rank,
                                   " bytes); try fewer ranks on each machine\n")))
      << line;
  // Four ranks on each machine fit; so do two that are on this machine, whose memory counts then.
  EXPECT_TRUE(forecast_of(recipe, model, 16, target_of(4, 8 * rank - 1)).fits());
  EXPECT_TRUE(forecast_of(recipe, model, 16, target_of(8, 1), {.memory = 2 * rank, .ranks = 2}).fits());
  EXPECT_FALSE(forecast_of(recipe, model, 16, target_of(8, 0), {.memory = 2 * rank - 1, .ranks = 2}).fits());
}

TEST(HostMemory, IsReported) {
  const models::Model model = model_of();
  const Recipe recipe = recipe_of(2);
  const std::int64_t needed = forecast_of(recipe, model, 2, target_of(8, 0)).host_needed();
  for (const std::int64_t memory : {std::int64_t{0}, needed + (1 << 20), needed - (1 << 20)}) {
    const plan::Target target = target_of(8, memory);
    const plan::Forecast f = forecast_of(recipe, model, 2, target);
    const plan::PlanFacts facts{.steps = {}, .disk = {}, .free_disk = {}, .alternatives = {}};
    const std::string text = plan::plan_text(recipe, model, target, f, facts);
    const std::string of = cat("of ", format_bytes(Bytes(memory)), " ");
    const std::string remark = memory == 0       ? "per machine, whose memory is not known\n"
                               : memory > needed ? of + "per machine: fits, 1.0 MiB left\n"
                                                 : of + "per machine: does not fit, 1.0 MiB over\n";
    EXPECT_NE(text.find(remark), std::string::npos) << remark << text;
    EXPECT_NE(text.find("host memory, 2 ranks"), std::string::npos);
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
    const nlohmann::json json = nlohmann::json::parse(plan::plan_json(recipe, model, target, f, facts));
    EXPECT_EQ(json.at("host_memory").at("needed"), needed);
    EXPECT_EQ(json.at("host_memory").at("ranks"), 2);
    EXPECT_EQ(json.at("host_memory").contains("capacity"), memory > 0);
    EXPECT_EQ(json.at("fits"), memory == 0 || memory > needed);
    if (memory > 0 && memory < needed) {
      EXPECT_NE(plan::headline(f, facts).find(" of host memory per machine, has "), std::string::npos);
    }
  }
}

// A session that also evaluates, as that of a run does: what its evaluations stage is in host memory of their own.
TEST(HostMemory, OfValidationIsCounted) {
  const models::Model model = model_of();
  for (const Checkpointing checkpointing : {Checkpointing::none, Checkpointing::full}) {
    for (const double fraction : {0.0, 0.5}) {
      SCOPED_TRACE(cat("checkpointing ", static_cast<int>(checkpointing), ", validation ", fraction));
      Recipe recipe = recipe_of(3);
      recipe.data.train = {"text.txt"};
      recipe.data.validation_fraction = fraction;
      recipe.memory.activation_checkpointing = checkpointing;
      const plan::Forecast f =
          plan::Forecaster(recipe, model, 1, plan::load_target("cpu"), plan::this_machine(), 1).forecast();
      std::vector<step::Purpose> purposes{step::Purpose::train};
      if (plan::evaluates(recipe)) purposes.push_back(step::Purpose::loss);
      EXPECT_EQ(purposes.size(), fraction > 0 ? 2u : 1u);
      const auto cpu = make_cpu_device();
      testing::CountingDevice device(*cpu);
      const auto mesh = comm::make_self_mesh();
      const engine::Session session(model, f.layout, device, *mesh, purposes);
      EXPECT_EQ(f.largest().costs.pinned_bytes, session.pinned_bytes());
      EXPECT_EQ(f.largest().costs.pinned_bytes, device.host);
      EXPECT_EQ(f.largest().costs.total_bytes, session.planned_bytes());
    }
  }
}

TEST(HostMemory, IsCheckedForEvaluations) {
  const models::Model model = model_of();
  const Recipe recipe = recipe_of(2);
  const plan::Layout layout = plan::make_layout(recipe, model, 2, DType::bf16, 1, DeviceKind::cuda);
  const auto check = [&](std::int64_t memory) {
    plan::check_capacity(recipe, model, layout, step::Purpose::loss, "less", {.memory = memory, .ranks = 2}, "h200");
  };
  EXPECT_NO_THROW(check(std::int64_t{1} << 40));
  EXPECT_THROW(check(std::int64_t{8} << 30), Error);  // the two processes, and what they stage
}

}  // namespace host_memory_test
}  // namespace hawser
