// Forecasts with pipeline stages: memory of each stage, and the time of all together.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "config/config.h"
#include "plan/pipeline_form.h"
#include "plan/report.h"
#include "support.h"

namespace hawser {
namespace pipeline_forecast_test {

using models::PipelinePartition;

constexpr std::int64_t kLength = 64;

models::Model model_of(int blocks, bool tied = false) {
  return models::Model(testing::llama_description({.width = 32,
                                                   .heads = 4,
                                                   .kv_heads = 2,
                                                   .head_dim = 8,
                                                   .inner = 48,
                                                   .vocabulary = 16,
                                                   .blocks = blocks,
                                                   .tied = tied}));
}

// With `data_ranks` shards in each stage.
Recipe recipe_of(const PipelinePartition& partition, int micro_batches, int data_ranks = 1) {
  Recipe recipe;
  recipe.name = "stages";
  recipe.data.sequence_length = kLength;
  recipe.data.pack = Packing::chunks;
  recipe.parallel.pipeline_parallel_degree = partition.stages;
  recipe.parallel.pipeline_partition = plan::blocks_of(partition);
  recipe.train.global_batch_size = std::int64_t{1} * micro_batches * data_ranks;
  recipe.train.micro_batch_size = 1;
  recipe.memory.activation_checkpointing = Checkpointing::none;
  return recipe;
}

// Only GEMMs and attention take time, and messages none.
plan::Target free_messages() {
  plan::Target target{.name = "free", .capacity = std::int64_t{1} << 40, .copy = 1e300};
  target.bf16 = target.float32 = {.gemm = 1e6, .attention = {.forward = 1e6, .backward = 1e6}};
  target.links = {{.ranks = 0, .rate = 1e300}};
  return target;
}

plan::Forecaster forecaster(const Recipe& recipe, const models::Model& model, const plan::Target& target,
                            int data_ranks = 1) {
  return {recipe,
          model,
          recipe.parallel.pipeline_parallel_degree * data_ranks,
          target,
          {.cores = 4, .memory = std::int64_t{1} << 50},
          1};
}

// Even and uneven cuts, the last stage with only the head, a first one with only the embedding.
std::vector<PipelinePartition> partitions_of_four_blocks() {
  return {{.stages = 2, .ends = {2, 4}},       {.stages = 2, .ends = {3, 4}},
          {.stages = 2, .ends = {4, 4}},       {.stages = 4, .ends = {1, 2, 3, 4}},
          {.stages = 4, .ends = {1, 3, 4, 4}}, {.stages = 4, .ends = {0, 1, 2, 4}}};
}

void expect_memory_of_stages(const models::Model& model, const PipelinePartition& partition,
                             const std::string& target) {
  SCOPED_TRACE(cat(target, " ", partition.stages, " stages, the first has ", partition.ends[0], " blocks"));
  const Recipe recipe = recipe_of(partition, 3, 2);
  const plan::Forecast f = forecaster(recipe, model, plan::load_target(target), 2).forecast();
  ASSERT_EQ(std::ssize(f.stages), partition.stages);
  EXPECT_TRUE(f.placed);
  EXPECT_EQ(f.layout.micro_batches, 3);
  std::int64_t largest = 0;
  double flops = 0;
  for (int stage = 0; stage < partition.stages; ++stage) {
    const plan::StageForecast& of_stage = f.stages[static_cast<std::size_t>(stage)];
    const plan::RankClass ranks = plan::rank_classes(f.layout.mesh)[static_cast<std::size_t>(stage)];
    EXPECT_EQ(ranks.text(), cat("ranks ", 2 * stage, "-", 2 * stage + 1));
    for (const int rank : {ranks.first, ranks.last}) {
      const plan::RankPlan alone = plan::plan_rank(model, f.layout, step::Purpose::train, rank);
      EXPECT_EQ(of_stage.costs.total_bytes, alone.bytes());
      EXPECT_EQ(of_stage.costs.saved_bytes, alone.saved_bytes);
      EXPECT_EQ(f.needed(of_stage),
                alone.bytes() + of_stage.overhead + (f.layout.device == DeviceKind::cpu ? alone.pinned_bytes() : 0));
    }
    largest = std::max(largest, f.needed(of_stage));
    flops += of_stage.costs.model_flops;
  }
  EXPECT_EQ(f.needed(), largest);
  EXPECT_EQ(f.needed(f.largest()), largest);
  // All stages together compute the model.
  const Recipe one = recipe_of({}, 3, 2);
  const plan::Forecast full =
      plan::Forecaster(one, model, 2, plan::load_target(target), plan::this_machine(), 1).forecast();
  EXPECT_NEAR(flops, full.largest().costs.model_flops, 1e-9 * flops);
}

TEST(PipelineForecast, TheMemoryOfEachStageIsThatOfItsPlan) {
  for (const PipelinePartition& partition : partitions_of_four_blocks()) {
    expect_memory_of_stages(model_of(4, /*tied=*/true), partition, partition.stages == 2 ? "cpu" : "h200");
    expect_memory_of_stages(model_of(4, /*tied=*/false), partition, partition.stages == 2 ? "h200" : "cpu");
  }
}

// The bubble of 1F1B is (p - 1)(F + B + W), where B + W is one backward pass. The last stage also has the head, so that
// it never waits.
TEST(PipelineForecast, AStepTakesTheTimeOfThePipeline) {
  for (const int stages : {2, 4}) {
    const models::Model model = model_of(stages);
    PipelinePartition partition{.stages = stages};
    for (int stage = 0; stage < stages; ++stage) partition.ends.push_back(stage + 1);
    for (const int micro_batches : {1, stages, 3 * stages + 1}) {
      const Recipe recipe = recipe_of(partition, micro_batches);
      const plan::Forecast f = forecaster(recipe, model, free_messages()).forecast();
      const auto busy = [&](int stage) {
        const auto& of_stage = f.stages[static_cast<std::size_t>(stage)].time.busy;
        return of_stage.at("GEMM") + of_stage.at("attention");
      };
      const double pass = busy(0) / micro_batches;  // F + B + W
      for (int stage = 0; stage + 1 < stages; ++stage) EXPECT_NEAR(busy(stage), busy(0), 1e-9 * busy(0));
      EXPECT_GT(busy(stages - 1), busy(0));
      EXPECT_NEAR(f.seconds, busy(stages - 1) + (stages - 1) * pass, 1e-9 * f.seconds)
          << stages << " stages, " << micro_batches << " micro-batches";
      EXPECT_NEAR(f.tokens_per_second, static_cast<double>(micro_batches * kLength) / f.seconds,
                  1e-9 * f.tokens_per_second);
    }
  }
}

// Where only attention takes time, the head takes none: stages with as many blocks take equally long.
TEST(PipelineForecast, UnevenStagesWaitForTheSlowest) {
  plan::Target target = free_messages();
  target.float32.gemm = 1e300;
  target.float32.attention.backward = 2.5e6;  // as long as forward
  const models::Model model = model_of(4);
  constexpr int kMicroBatches = 5;
  const auto attention = [](const plan::Forecast& f, std::size_t stage) {
    const auto& busy = f.stages[stage].time.busy;
    return busy.contains("attention") ? busy.at("attention") : 0.0;
  };
  const auto forecast = [&](const PipelinePartition& partition) {
    const Recipe recipe = recipe_of(partition, kMicroBatches);
    return forecaster(recipe, model, target).forecast();
  };
  // The first stage never waits; the second has a third of its work.
  const plan::Forecast uneven = forecast({.stages = 2, .ends = {3, 4}});
  EXPECT_NEAR(attention(uneven, 0), 3 * attention(uneven, 1), 1e-9);
  EXPECT_NEAR(uneven.seconds, attention(uneven, 0), 1e-9 * uneven.seconds);
  // No stage waits for the last one, which has only the head.
  const plan::Forecast head = forecast({.stages = 2, .ends = {4, 4}});
  EXPECT_EQ(attention(head, 1), 0.0);
  EXPECT_NEAR(head.seconds, attention(head, 0), 1e-9 * head.seconds);
  // Even stages: the bubble of one pass.
  const plan::Forecast even = forecast({.stages = 2, .ends = {2, 4}});
  EXPECT_NEAR(even.seconds, attention(even, 0) * (kMicroBatches + 1) / kMicroBatches, 1e-9 * even.seconds);
}

// An activation and its gradient, one after the other, over the link between the stages.
TEST(PipelineForecast, MessagesTakeTheTimeOfTheirLink) {
  const models::Model model = model_of(2);
  const PipelinePartition partition{.stages = 2, .ends = {1, 2}};
  const double bytes = static_cast<double>(kLength) * 32 * 4;
  plan::Target target = free_messages();
  const auto seconds = [&](double rate) {
    target.links = {{.ranks = 2, .rate = 1e300}, {.ranks = 0, .rate = rate}};
    const Recipe recipe = recipe_of(partition, 1, 2);
    const plan::Forecast f = forecaster(recipe, model, target, 2).forecast();
    EXPECT_EQ(f.stages[0].costs.traffic.at("pipeline"), bytes);  // the activation
    EXPECT_EQ(f.stages[1].costs.traffic.at("pipeline"), bytes);  // its gradient
    return f.seconds;
  };
  EXPECT_NEAR(seconds(bytes) - seconds(1e300), 2.0, 0.02);  // sums of a few numbers between the stages take the rest
}

// Many micro-batches of a recipe that does not fit: those after the first are added.
TEST(PipelineForecast, FurtherMicroBatchesAreExtrapolated) {
  const models::Model model = model_of(4);
  for (const PipelinePartition& partition :
       {PipelinePartition{.stages = 2, .ends = {3, 4}}, {.stages = 4, .ends = {1, 3, 4, 4}}}) {
    const int micro_batches = 2 * partition.stages + 3;
    Recipe recipe = recipe_of(partition, micro_batches);
    const plan::Forecast all = forecaster(recipe, model, free_messages()).forecast();
    ASSERT_TRUE(all.fits());
    // As many as are in flight at once, and as many again.
    const Recipe planned = recipe_of(partition, 2 * partition.stages);
    const plan::Forecast first = forecaster(planned, model, free_messages()).forecast();
    recipe.memory.capacity = Bytes(first.needed() / 2);
    const plan::Forecast some = forecaster(recipe, model, free_messages()).forecast();
    ASSERT_FALSE(some.fits());
    EXPECT_EQ(some.layout.micro_batches, micro_batches);
    EXPECT_NEAR(some.seconds, all.seconds, 1e-9 * all.seconds);
    EXPECT_NEAR(some.bubble(), all.bubble(), 1e-9);
    for (std::size_t s = 0; s < all.stages.size(); ++s) {
      EXPECT_NEAR(some.stages[s].costs.flops, all.stages[s].costs.flops, 1e-9 * all.stages[s].costs.flops);
      EXPECT_EQ(some.needed(some.stages[s]), all.needed(all.stages[s]));
    }
  }
}

// Each stage alone is without defect.
TEST(PipelineForecast, StagesThatDoNotMatchAreRejected) {
  const models::Model model = model_of(2);
  const Recipe recipe = recipe_of({.stages = 2, .ends = {1, 2}}, 2);
  using enum step::Pass::Kind;
  const plan::CompleteChoices swapped = [](plan::LayoutChoices& layout, const models::Model&) {
    layout.schedule.passes = [](int stage, int) -> std::vector<step::Pass> {
      const int first = stage, second = 1 - stage;
      return {{forward, first, stage}, {forward, second, stage}, {backward, first, stage}, {backward, second, stage}};
    };
  };
  const plan::Forecaster planned(recipe, model, 2, free_messages(), plan::this_machine(), 1, swapped);
  try {
    planned.forecast();
    ADD_FAILURE() << "accepted";
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("message 0 from rank 0 to rank 1"), std::string::npos) << error.what();
  }
}

TEST(PipelineForecast, ReportsEachStageAndNamesTheLargest) {
  const models::Model model = model_of(4);
  const PipelinePartition partition{.stages = 2, .ends = {1, 4}};
  Recipe recipe = recipe_of(partition, 3, 2);
  const plan::Target target = free_messages();
  const auto text_of = [&](const plan::Forecast& f) {
    return plan::plan_text(recipe, model, target, f, {.steps = {}, .disk = {}, .free_disk = {}, .alternatives = {}});
  };
  const plan::Forecast f = forecaster(recipe, model, target, 2).forecast();
  ASSERT_EQ(f.largest_stage(), 1);
  const std::string text = text_of(f);
  for (const char* part :
       {"2 pipeline stages, 3 micro-batches", "\npipeline: 1f1b, blocks [1,3]; bubble ",
        "peak memory of each rank of stage 1 (at ",
        "\nby pipeline stage and rank: memory, time of computing in a step\n  0: ranks 0-1  ", "\n  1: ranks 2-3  ",
        "; embedding, 1 block\n", "; 3 blocks, head\n", "\nper step and rank of pipeline stage 1\n"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  }
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;

  const nlohmann::json json = nlohmann::json::parse(
      plan::plan_json(recipe, model, target, f, {.steps = {}, .disk = {}, .free_disk = {}, .alternatives = {}}));
  ASSERT_EQ(json.at("memory").size(), 2u);
  EXPECT_EQ(json.at("stage"), 1);
  for (std::size_t s = 0; s < 2; ++s) {
    EXPECT_EQ(json.at("memory")[s].at("stage"), s);
    EXPECT_EQ(json.at("memory")[s].at("needed"), f.needed(f.stages[s]));
  }
  EXPECT_EQ(json.at("memory")[1].at("ranks"), "2-3");

  recipe.memory.capacity = Bytes(f.needed() - 1);
  const plan::Forecast tight = forecaster(recipe, model, target, 2).forecast();
  const plan::PlanFacts none{.steps = {}, .disk = {}, .free_disk = {}, .alternatives = {}};
  EXPECT_NE(plan::headline(tight, none).find(" per rank of pipeline stage 1, has "), std::string::npos);
  EXPECT_NE(plan::rejection(recipe, tight, {}).find(" of pipeline stage 1"), std::string::npos);
}

TEST(PipelineForecast, ChosenPoliciesFitEveryStage) {
  const models::Model model = model_of(4);
  const PipelinePartition partition{.stages = 2, .ends = {1, 4}};
  Recipe recipe = recipe_of(partition, 5);
  const std::int64_t none = forecaster(recipe, model, free_messages()).forecast().needed();
  recipe.memory.activation_checkpointing = Checkpointing::full;
  const std::int64_t full = forecaster(recipe, model, free_messages()).forecast().needed();
  ASSERT_LT(full, none);
  recipe.memory.activation_checkpointing = Checkpointing::automatic;
  recipe.memory.capacity = Bytes((none + full) / 2);
  const plan::Forecast f = forecaster(recipe, model, free_messages()).forecast();
  EXPECT_TRUE(f.chosen);
  EXPECT_TRUE(f.fits());
  for (const plan::StageForecast& stage : f.stages) EXPECT_LE(f.needed(stage), f.capacity);
  // A recipe that does not fit gets suggestions that do.
  recipe.memory.activation_checkpointing = Checkpointing::none;
  const plan::Forecaster tight = forecaster(recipe, model, free_messages());
  ASSERT_FALSE(tight.forecast().fits());
  const std::vector<plan::Suggestion> suggestions = tight.suggestions(plan::kSuggestions);
  ASSERT_FALSE(suggestions.empty());
  for (const plan::Suggestion& suggestion : suggestions) {
    const plan::Forecast there = forecaster(suggestion.recipe, model, free_messages()).forecast();
    EXPECT_TRUE(there.fits()) << suggestion.flags();
    EXPECT_EQ(there.needed(), suggestion.needed) << suggestion.flags();
  }
}

}  // namespace pipeline_forecast_test
}  // namespace hawser
