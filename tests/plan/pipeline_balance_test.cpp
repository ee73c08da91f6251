// Balanced cuts between pipeline stages: the simulated step, and that no cuts of a small model are better.
#include "plan/pipeline_balance.h"

#include <gtest/gtest.h>

#include <functional>

#include "config/config.h"
#include "plan/forecast.h"
#include "plan/pipeline_form.h"
#include "support.h"

namespace hawser {
namespace pipeline_balance_test {

using models::PipelinePartition;
using plan::ModelTimes;
using plan::PassTimes;

constexpr PipelineSchedule kSchedules[] = {PipelineSchedule::one_forward_one_backward, PipelineSchedule::gpipe,
                                           PipelineSchedule::interleaved, PipelineSchedule::zero_bubble};

ModelTimes equal_blocks(int blocks, const PassTimes& block = {1, 1, 1}) {
  return {.blocks = std::vector<PassTimes>(static_cast<std::size_t>(blocks), block), .embedding = {}, .head = {}};
}

// Without delay, backward computes the gradients of weights, too.
PassTimes as_in(PipelineSchedule schedule, const PassTimes& times) {
  if (schedule == PipelineSchedule::zero_bubble) return times;
  return {times.forward, times.backward + times.weights, 0};
}

double seconds(PipelineSchedule schedule, const PipelinePartition& cuts, int micro_batches, const ModelTimes& times) {
  const int each = cuts.model_chunks() / cuts.stages;
  return plan::pipeline_seconds(plan::schedule_of(schedule, cuts.stages, each), cuts, micro_batches, times);
}

// Any number of stages and micro-batches ends, and takes no less than the work of a stage and the first pass through
// all of them. With whole groups the bubbles are those of the papers.
TEST(PipelineBalance, EveryScheduleEndsForAnyNumberOfMicroBatches) {
  for (int stages = 1; stages <= 16; ++stages) {
    for (const int micro_batches : {1, 2, 3, 5, 8, 13, 16, 31, 64}) {
      for (const PipelineSchedule schedule : kSchedules) {
        for (const int each : schedule == PipelineSchedule::interleaved ? std::vector{2, 3, 4} : std::vector{1}) {
          const PipelinePartition cuts = plan::equal_partition(stages, each, stages * each);
          const double step =
              seconds(schedule, cuts, micro_batches, equal_blocks(stages * each, as_in(schedule, {1, 1, 1})));
          const double work = 3.0 * each * micro_batches;
          const auto what = [&] {
            return cat(stages, " stages, ", micro_batches, " micro-batches, schedule ", static_cast<int>(schedule),
                       ", model chunks ", each);
          };
          ASSERT_TRUE(std::isfinite(step)) << what();
          EXPECT_GE(step, work + stages - 1) << what();
          const bool whole = micro_batches % stages == 0;
          if (schedule == PipelineSchedule::one_forward_one_backward || schedule == PipelineSchedule::gpipe) {
            EXPECT_NEAR(step, work + 3 * (stages - 1), 1e-9) << what();
          } else if (schedule == PipelineSchedule::zero_bubble && micro_batches >= stages) {
            EXPECT_NEAR(step, work + stages - 1, 1e-9) << what();
          } else if (schedule == PipelineSchedule::interleaved && whole) {
            EXPECT_NEAR(step, work + 3 * (stages - 1), 1e-9) << what();
          }
        }
      }
    }
  }
}

// The most model chunks of micro-batches that a stage has between forward and `end`.
int most_between(const std::vector<step::Pass>& passes, step::Pass::Kind end) {
  int now = 0, most = 0;
  for (const step::Pass& pass : passes) {
    now += pass.kind == step::Pass::Kind::forward ? 1 : pass.kind == end ? -1 : 0;
    most = std::max(most, now);
  }
  return most;
}

TEST(PipelineBalance, ZeroBubbleKeepsAsManyMicroBatchesAsTheFirstStageOf1F1B) {
  for (const int stages : {2, 4, 8}) {
    const plan::Schedule schedule = plan::schedule_of(PipelineSchedule::zero_bubble, stages);
    for (int stage = 0; stage < stages; ++stage)
      EXPECT_EQ(most_between(schedule.passes(stage, 8 * stages), step::Pass::Kind::weight_gradients), stages);
  }
}

// As docs/pipeline.md has them, in model chunks.
TEST(PipelineBalance, StagesStoreAsManyMicroBatchesAsTheDocsSay) {
  for (const int stages : {2, 4, 8}) {
    const int micro_batches = 8 * stages;
    for (int stage = 0; stage < stages; ++stage) {
      const auto stored = [&](PipelineSchedule schedule, int each = 1) {
        const PipelinePartition cuts = plan::equal_partition(stages, each, stages * each);
        return most_between(plan::schedule_of(schedule, stages, each).of_stage(cuts, stage, micro_batches),
                            step::Pass::Kind::backward);
      };
      EXPECT_EQ(stored(PipelineSchedule::one_forward_one_backward), stages - stage);
      EXPECT_EQ(stored(PipelineSchedule::gpipe), micro_batches);
      for (const int each : {2, 4}) {
        EXPECT_EQ(stored(PipelineSchedule::interleaved, each), 2 * (stages - stage) - 1 + (each - 1) * stages);
      }
    }
  }
}

// "F0 F1 B0 F2 B1 B2", with weight gradients where they are delayed.
std::string text_of(PipelineSchedule schedule, int stage) {
  const plan::Schedule of = plan::schedule_of(schedule, 2);
  std::string out;
  for (const step::Pass& pass : of.of_stage(plan::equal_partition(2, 1, 2), stage, 3)) {
    const bool weights = pass.kind == step::Pass::Kind::weight_gradients;
    if (weights && !of.delays_weights) continue;
    out += cat(out.empty() ? "" : " ",
               weights                                  ? "W"
               : pass.kind == step::Pass::Kind::forward ? "F"
                                                        : "B",
               pass.micro_batch);
  }
  return out;
}

// The examples of step/pipeline_passes.h.
TEST(PipelineBalance, SchedulesOfTwoStages) {
  EXPECT_EQ(text_of(PipelineSchedule::gpipe, 0), "F0 F1 F2 B0 B1 B2");
  EXPECT_EQ(text_of(PipelineSchedule::one_forward_one_backward, 0), "F0 F1 B0 F2 B1 B2");
  EXPECT_EQ(text_of(PipelineSchedule::one_forward_one_backward, 1), "F0 B0 F1 B1 F2 B2");
  EXPECT_EQ(text_of(PipelineSchedule::zero_bubble, 0), "F0 F1 B0 W0 F2 B1 W1 B2 W2");
  EXPECT_EQ(text_of(PipelineSchedule::zero_bubble, 1), "F0 B0 F1 B1 W0 F2 B2 W1 W2");
}

// Calls visit with each list of `count` positive numbers of this sum.
void for_each_cut(int count, int sum, std::vector<int>& blocks,
                  const std::function<void(const std::vector<int>&)>& visit) {
  if (count == 1) {
    blocks.push_back(sum);
    visit(blocks);
    blocks.pop_back();
    return;
  }
  for (int first = 1; first <= sum - count + 1; ++first) {
    blocks.push_back(first);
    for_each_cut(count - 1, sum - first, blocks, visit);
    blocks.pop_back();
  }
}

double best_of_all(PipelineSchedule schedule, int stages, int each, int micro_batches, const ModelTimes& times) {
  double best = std::numeric_limits<double>::infinity();
  std::vector<int> blocks;
  for_each_cut(stages * each, static_cast<int>(times.blocks.size()), blocks, [&](const std::vector<int>& cut) {
    ParallelRecipe recipe;
    recipe.pipeline_parallel_degree = stages;
    recipe.pipeline_partition = cut;
    best = std::min(best, seconds(schedule, plan::partition_of(recipe, 0), micro_batches, times));
  });
  return best;
}

// A head of 1.6 blocks, as in bf16, of 2.3, as in FP8, and one that is longer than a stage; blocks of two lengths.
TEST(PipelineBalance, NoOtherCutsOfASmallModelAreMuchFaster) {
  for (const double head : {1.6, 2.3, 5.0}) {
    for (const PipelineSchedule schedule : kSchedules) {
      const int each = schedule == PipelineSchedule::interleaved ? 2 : 1;
      for (const int stages : {2, 3}) {
        for (const int micro_batches : {2, 8}) {
          ModelTimes times = equal_blocks(12, as_in(schedule, {1, 1.1, 0.9}));
          for (std::size_t block = 0; block < 12; block += 3) times.blocks[block].forward = 1.7;
          times.head = {3 * head, 0, 0};
          times.embedding = {0.1, 0.1, 0};
          const plan::Schedule passes = plan::schedule_of(schedule, stages, each);
          const PipelinePartition cuts = plan::balanced(passes, stages, each, micro_batches, times);
          const double ours = seconds(schedule, cuts, micro_batches, times);
          EXPECT_LE(ours, 1.03 * best_of_all(schedule, stages, each, micro_batches, times))
              << "head " << head << ", schedule " << static_cast<int>(schedule) << ", " << stages << " stages, "
              << micro_batches << " micro-batches";
          EXPECT_LE(ours, seconds(schedule, plan::equal_partition(stages, each, 12), micro_batches, times) + 1e-9);
        }
      }
    }
  }
}

TEST(PipelineBalance, StagesStayWithinTheCapacityWhereTheyCan) {
  const plan::Schedule schedule = plan::schedule_of(PipelineSchedule::one_forward_one_backward, 2);
  const ModelTimes times = equal_blocks(12);
  const auto cuts = [&](PipelineOptimize optimize, double capacity) {
    // The first stage has two micro-batches in flight, the second one.
    const plan::Balance balance{.optimize = optimize, .memory = {{10, 4}, {20, 2}}, .capacity = capacity};
    return plan::blocks_of(plan::balanced(schedule, 2, 1, 8, times, balance));
  };
  EXPECT_EQ(cuts(PipelineOptimize::speed, 34), (std::vector{6, 6}));
  EXPECT_EQ(cuts(PipelineOptimize::speed, 33), (std::vector{6, 6}));  // none fit: as near as any
  EXPECT_EQ(cuts(PipelineOptimize::speed, 36), (std::vector{6, 6}));
  EXPECT_EQ(cuts(PipelineOptimize::memory, 100), (std::vector{6, 6}));
  const auto heavy = [&](PipelineOptimize optimize, double capacity) {
    const plan::Balance balance{.optimize = optimize, .memory = {{10, 8}, {10, 2}}, .capacity = capacity};
    return plan::blocks_of(plan::balanced(schedule, 2, 1, 8, times, balance));
  };
  EXPECT_EQ(heavy(PipelineOptimize::speed, 100), (std::vector{6, 6}));
  EXPECT_EQ(heavy(PipelineOptimize::speed, 45), (std::vector{4, 8}));  // 10 + 4 x 8 = 42
  EXPECT_EQ(heavy(PipelineOptimize::memory, 100), (std::vector{2, 10}));
}

models::Model model_of(int blocks) {
  return models::Model(testing::llama_description({.width = 1024,
                                                   .heads = 16,
                                                   .kv_heads = 4,
                                                   .head_dim = 64,
                                                   .inner = 4096,
                                                   .vocabulary = 64000,
                                                   .blocks = blocks}));
}

Recipe recipe_of(const std::vector<std::string>& keys) {
  Recipe recipe;
  recipe.data.sequence_length = 4096;
  recipe.data.pack = Packing::chunks;
  recipe.parallel.pipeline_parallel_degree = 4;
  recipe.train.global_batch_size = 8;
  recipe.memory.activation_checkpointing = Checkpointing::selective;
  return override_recipe(recipe, keys);
}

plan::Forecast forecast(const Recipe& recipe, const models::Model& model) {
  const int ranks = recipe.parallel.pipeline_parallel_degree;
  return plan::Forecaster(recipe, model, ranks, plan::load_target("h200"), plan::this_machine(), 1).forecast();
}

// The large head takes the time of some blocks: the last stage has fewer, and the step is shorter.
TEST(PipelineBalance, AutoIsFasterThanEqualCutsAndSaysByHowMuch) {
  const models::Model model = model_of(16);
  for (const char* schedule : {"1f1b", "gpipe", "interleaved", "zero_bubble"}) {
    const std::string key = cat("parallel.pipeline_schedule=", schedule);
    const plan::Forecast automatic = forecast(recipe_of({key}), model);
    const int each = std::string(schedule) == "interleaved" ? 2 : 1;
    const std::string equal = each == 2 ? "[8*2]" : "[4*4]";
    const plan::Forecast even = forecast(recipe_of({key, "parallel.pipeline_partition=" + equal}), model);
    ASSERT_TRUE(automatic.equal_cuts.has_value());
    EXPECT_FALSE(even.equal_cuts.has_value());
    EXPECT_LT(automatic.seconds, even.seconds) << schedule;
    EXPECT_NEAR(1 + *automatic.equal_cuts, even.seconds / automatic.seconds, 0.05) << schedule;
    EXPECT_LT(plan::blocks_of(automatic.layout.partition).back(), 16 / (4 * each)) << schedule;
    EXPECT_GT(even.bubble(), automatic.bubble()) << schedule;
  }
}

TEST(PipelineBalance, AutoFitsWhereTheFastestCutsDoNot) {
  const models::Model model = model_of(32);
  const plan::Forecast fastest = forecast(recipe_of({}), model);
  std::int64_t least = fastest.needed();
  for (const plan::StageForecast& stage : fastest.stages) least = std::min(least, fastest.needed(stage));
  Recipe tight = recipe_of({});
  tight.memory.capacity = Bytes((2 * fastest.needed() + least) / 3);
  const plan::Forecast moved = forecast(tight, model);
  EXPECT_TRUE(moved.fits());
  EXPECT_NE(moved.layout.partition, fastest.layout.partition);
  EXPECT_GE(moved.seconds, fastest.seconds);
  const plan::Forecast smallest = forecast(recipe_of({"parallel.pipeline_optimize=memory"}), model);
  EXPECT_LT(smallest.needed(), fastest.needed());
  EXPECT_LE(smallest.needed(), moved.needed());
}

// A step takes as long as its slowest stage: each model chunk recomputes the same part of its blocks.
TEST(PipelineBalance, AutoRecomputesAlikeInAllStages) {
  const models::Model model = model_of(64);
  const std::vector<std::string> keys{"parallel.pipeline_parallel_degree=8", "parallel.pipeline_partition=[8*8]",
                                      "train.global_batch_size=32"};
  const auto with = [&](const char* policy) {
    std::vector<std::string> all = keys;
    all.push_back(cat("memory.activation_checkpointing=", policy));
    return recipe_of(all);
  };
  const plan::Forecast most = forecast(with("none"), model), least = forecast(with("full"), model);
  for (const double part : {0.3, 0.6, 0.9}) {
    Recipe recipe = with("auto");
    recipe.memory.capacity =
        Bytes(least.needed() + std::llround(part * static_cast<double>(most.needed() - least.needed())));
    const plan::Forecast f = forecast(recipe, model);
    EXPECT_TRUE(f.fits());
    EXPECT_GT(f.needed(), 0.95 * static_cast<double>(f.capacity)) << part;
    EXPECT_LT(f.seconds, least.seconds) << part;
    for (std::size_t b = 8; b < 64; ++b) EXPECT_EQ(f.candidate.blocks[b], f.candidate.blocks[b - 8]) << part;
    for (const char* policy : {"selective", "qkv", "gate_up", "projections"}) {
      const plan::Forecast uniform = forecast(with(policy), model);
      if (uniform.needed() <= 0.98 * static_cast<double>(f.capacity)) {
        EXPECT_LE(f.seconds, 1.002 * uniform.seconds) << part << " " << policy;
      }
    }
  }
}

// Of many micro-batches the first are planned: device memory, time and host memory are those of all.
TEST(PipelineBalance, ManyMicroBatchesNeedWhatTheirPlansNeed) {
  const models::Model model = model_of(32);
  for (const char* schedule : {"1f1b", "interleaved", "zero_bubble"}) {
    const Recipe recipe = recipe_of({cat("parallel.pipeline_schedule=", schedule), "train.global_batch_size=67"});
    const plan::Forecast f = forecast(recipe, model);
    ASSERT_GT(model.blocks() * f.layout.micro_batches, 2048);
    std::vector<program::RankTrace> traces;
    const auto plans = plan::plan_stages(model, f.layout, step::Purpose::train, 0, false);
    for (std::size_t s = 0; s < plans.size(); ++s) {
      EXPECT_EQ(f.stages[s].costs.total_bytes, plans[s].bytes()) << schedule << ", stage " << s;
      EXPECT_EQ(f.stages[s].costs.pinned_bytes, plans[s].pinned_bytes()) << schedule << ", stage " << s;
      traces.push_back({.rank = static_cast<int>(s), .trace = &plans[s].trace});
    }
    double seconds = 0;
    for (const plan::StepTime& time : plan::step_times(traces, plan::load_target("h200"), f.layout.compute, 1)) {
      seconds = std::max(seconds, time.seconds);
    }
    EXPECT_NEAR(f.seconds, seconds, 2e-3 * seconds) << schedule;
  }
}

}  // namespace pipeline_balance_test
}  // namespace hawser
