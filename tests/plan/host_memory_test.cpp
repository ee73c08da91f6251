// Host memory in forecasts: what all ranks of a machine need together, and its refusal.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "plan/report.h"
#include "support.h"

namespace hawser {
namespace {

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
void put_state_on_host(plan::Layout& layout, const models::Model& model) {
  layout.state_on_host.assign(model.flats().size(), true);
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
}

TEST(HostMemory, IsThatOfTheTargetOrOfThisMachine) {
  const plan::Target target = target_of(8, 1000);
  const auto planned = plan::host_memory_of(target, {.memory = 7}, 16);
  EXPECT_EQ(planned.capacity, 1000);
  EXPECT_EQ(planned.ranks, 8);
  EXPECT_EQ(plan::host_memory_of(target, {.memory = 7}, 4).ranks, 4);
  const auto here = plan::host_memory_of(target, {.memory = 7, .ranks = 2}, 16);
  EXPECT_EQ(here.capacity, 7);
  EXPECT_EQ(here.ranks, 2);
  EXPECT_EQ(plan::host_memory_of(plan::load_target("cpu"), {.memory = 7, .ranks = 2}, 2).capacity, 0);
  EXPECT_GT(plan::load_target("h200").host.memory, 0);
  EXPECT_GT(plan::load_target("h100").host.process, 0);
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
  EXPECT_TRUE(line.starts_with(cat("recipe.yaml: does not fit in host memory (expected at most ",
                                   format_bytes(Bytes(8 * rank - 1)), " for the 8 ranks of a machine, got ",
                                   format_bytes(Bytes(8 * rank)), "); try fewer ranks on each machine\n")))
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

}  // namespace
}  // namespace hawser
