// memory.activation_checkpointing: auto. The choice fits and leaves the margin free, and no other assignment of
// policies to blocks that does so is faster by more than a given bound.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <ctime>

#include "base/testing/test_paths.h"
#include "config/config.h"
#include "models/families.h"
#include "plan/forecast.h"
#include "plan/policy_candidates.h"
#include "support.h"

namespace hawser {
namespace auto_test {

using Policies = std::vector<Checkpointing>;

struct Setting {
  const char* target;
  int world, context;
  std::int64_t length, global_batch, micro_batch;
  testing::Sizes sizes;
};

// Small models with more activations than parameters. Sizes are chosen so that launch times do not dominate on a GPU.
std::vector<Setting> settings() {
  const testing::Sizes sizes{.width = 64, .heads = 4, .kv_heads = 2, .head_dim = 16, .inner = 224, .blocks = 4};
  const testing::Sizes wide{
      .width = 1024, .heads = 8, .kv_heads = 2, .head_dim = 128, .inner = 3584, .vocabulary = 1024, .blocks = 4};
  return {{"cpu", 1, 1, 128, 8, 8, sizes},   {"cpu", 1, 1, 128, 12, 4, sizes},  {"cpu", 4, 1, 2048, 4, 1, wide},
          {"h200", 1, 1, 16384, 1, 1, wide}, {"h200", 4, 4, 65536, 1, 1, wide}, {"h200", 8, 2, 2048, 32, 8, wide}};
}

Recipe recipe_of(const Setting& s) {
  Recipe recipe;
  recipe.data.sequence_length = s.length;
  recipe.data.pack = Packing::chunks;
  recipe.parallel.context_parallel_degree = s.context;
  recipe.train.global_batch_size = s.global_batch;
  recipe.train.micro_batch_size = s.micro_batch;
  recipe.memory.activation_checkpointing = Checkpointing::automatic;
  return recipe;
}

std::string runs(const Policies& policies) {
  MemoryRecipe memory;
  memory.per_layer = policies;
  return checkpointing_text(memory);
}

class Auto : public ::testing::TestWithParam<int> {
 protected:
  Auto()
      : setting_(settings()[static_cast<std::size_t>(GetParam())]),
        model_(testing::llama_description(setting_.sizes)),
        recipe_(recipe_of(setting_)),
        target_(plan::load_target(setting_.target)) {
    std::vector<Policies> found{{}};
    for (int block = 0; block < setting_.sizes.blocks; ++block) {
      std::vector<Policies> longer;
      for (const Policies& begun : found) {
        for (const Checkpointing policy : testing::kPolicies) {
          longer.push_back(begun);
          longer.back().push_back(policy);
        }
      }
      found = std::move(longer);
    }
    for (Policies& policies : found) all_.push_back(sketch(std::move(policies)));
    std::stable_sort(all_.begin(), all_.end(),
                     [](const Assignment& a, const Assignment& b) { return a.seconds < b.seconds; });
  }

  struct Assignment {
    Policies policies;
    std::int64_t live = 0;    // lower bound of any placement
    std::int64_t needed = 0;  // 0: not placed yet
    double seconds = 0;
  };

  plan::Forecaster forecaster(const Recipe& recipe) const {
    return {recipe, model_, setting_.world, target_, {.cores = 4, .memory = std::int64_t{1} << 50}, 1};
  }

  plan::Forecast forecast(const Policies& policies) const {
    Recipe recipe = recipe_;
    recipe.memory.per_layer = policies;
    return forecaster(recipe).forecast();
  }

  Assignment sketch(Policies policies) const {
    Recipe recipe = recipe_;
    recipe.memory.per_layer = policies;
    const DType compute = plan::compute_dtype(recipe.precision, target_);
    const plan::LayoutChoices layout = plan::layout_choices(recipe, model_, setting_.world, compute, 1,
                                                            target_.cuda ? DeviceKind::cuda : DeviceKind::cpu);
    const auto plan = plan::plan_rank(model_, plan::derive(layout, model_), step::Purpose::train, 0, false,
                                      program::Placing::estimate);
    return {std::move(policies), plan.bytes() + plan::overhead_of(target_, layout.mesh, 0), 0,
            plan::step_time(plan.trace, target_, compute, 1.0).seconds};
  }

  // The fastest assignment that needs at most `limit`.
  const Assignment* fastest(std::int64_t limit) {
    for (Assignment& a : all_) {
      if (a.live > limit) continue;
      if (a.needed == 0) a.needed = forecast(a.policies).needed();
      if (a.needed <= limit) return &a;
    }
    return nullptr;
  }

  Setting setting_;
  models::Model model_;
  Recipe recipe_;
  plan::Target target_;
  std::vector<Assignment> all_;  // fastest first
};

// Bound on how much slower the choice is than the best assignment, as a fraction of the maximum recompute time. One
// policy of one block of four is up to a quarter of that; most choices here are the best.
constexpr double kWorse = 0.1;

TEST_P(Auto, IsAsFastAsTheBestOfAllAssignments) {
  const std::int64_t max = forecast(Policies(4, Checkpointing::none)).needed();
  std::int64_t min = max;
  double slowest = 0, quickest = 1e300, worst = 0;
  for (const Checkpointing policy : testing::kPolicies) {
    const plan::Forecast f = forecast(Policies(4, policy));
    min = std::min(min, f.needed());
    slowest = std::max(slowest, f.seconds);
    quickest = std::min(quickest, f.seconds);
  }
  ASSERT_LT(min, max);
  for (int part = 0; part <= 20; ++part) {
    const std::int64_t limit = min + (max - min) * part / 20;
    Recipe recipe = recipe_;
    recipe.memory.capacity = Bytes(static_cast<std::int64_t>(static_cast<double>(limit) / (1 - plan::kAutoMargin)) + 1);
    const plan::Forecast chosen = forecaster(recipe).forecast();
    const Assignment* best = fastest(limit);
    ASSERT_NE(best, nullptr);
    const std::string where = cat(part, "/20: ", runs(chosen.checkpointing()), ", best ", runs(best->policies));
    EXPECT_TRUE(chosen.fits());
    EXPECT_TRUE(chosen.chosen);
    EXPECT_LE(static_cast<double>(chosen.needed()), (1 - plan::kAutoMargin) * static_cast<double>(chosen.capacity))
        << where;
    const double worse = (chosen.seconds - best->seconds) / (slowest - quickest);
    worst = std::max(worst, worse);
    EXPECT_LE(worse, kWorse) << where;
    if (worse > kWorse / 5) std::printf("%s: %.4f of recompute slower\n", where.c_str(), worse);
    for (const Checkpointing policy : testing::kPolicies) {
      const plan::Forecast uniform = forecast(Policies(4, policy));
      EXPECT_TRUE(uniform.needed() > limit || chosen.seconds <= uniform.seconds * (1 + 1e-12)) << where;
    }
    // The same choice again, and by name in the recipe.
    EXPECT_EQ(forecaster(recipe).forecast().checkpointing(), chosen.checkpointing());
    recipe.memory.per_layer = chosen.checkpointing();
    EXPECT_EQ(forecaster(recipe).forecast().needed(), chosen.needed());
  }
  std::printf("%s on %d: at worst %.4f of recompute slower than the best\n", setting_.target, setting_.world, worst);
}

// Of all orders of the same policies, the one in which later blocks save more never has more live bytes. Backward of a
// block with `block` needs more than that of `full`, so that its mixes may.
TEST_P(Auto, BlocksThatSaveLeastComeFirst) {
  for (const Assignment& a : all_) {
    if (std::ranges::count(a.policies, Checkpointing::block) > 0) continue;
    Policies sorted = a.policies;
    // The order of the candidates: gate_up saves less than qkv.
    const auto weight = [](Checkpointing p) {
      return p == Checkpointing::qkv ? 3 : p == Checkpointing::gate_up ? 4 : 2 * static_cast<int>(p);
    };
    std::stable_sort(sorted.begin(), sorted.end(),
                     [&](Checkpointing x, Checkpointing y) { return weight(x) > weight(y); });
    if (sorted == a.policies) continue;
    const auto ordered =
        std::find_if(all_.begin(), all_.end(), [&](const Assignment& other) { return other.policies == sorted; });
    EXPECT_LE(ordered->live, a.live) << runs(a.policies);
  }
}

INSTANTIATE_TEST_SUITE_P(Small, Auto, ::testing::Range(0, static_cast<int>(settings().size())));

TEST(AutoRejects, ARecipeThatCannotFit) {
  const models::Model model(testing::llama_description({.blocks = 2}));
  Recipe recipe = recipe_of(settings()[0]);
  recipe.memory.capacity = Bytes(1 << 20);
  try {
    plan::check_capacity(recipe, model, 1, 1);
    FAIL() << "a megabyte is not enough";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::does_not_fit);
    EXPECT_NE(std::string(error.what()).find("no settings were found"), std::string::npos) << error.what();
  }
  // If the margin cannot be left free, the policy with the minimum memory is chosen and runs.
  recipe.memory.per_layer.assign(2, Checkpointing::full);
  const std::int64_t min =
      plan::Forecaster(recipe, model, 1, plan::load_target("cpu"), plan::this_machine(), 1).forecast().needed();
  recipe.memory.per_layer.clear();
  recipe.memory.capacity = Bytes(min);
  EXPECT_NO_THROW(plan::check_capacity(recipe, model, 1, 1));
  recipe.memory.capacity = Bytes(min - 1);
  EXPECT_THROW(plan::check_capacity(recipe, model, 1, 1), Error);
}

struct Speed {
  const char* recipe;
  int ranks, context;
  std::int64_t length, batch;
  double seconds;
};

class AutoSpeed : public ::testing::TestWithParam<Speed> {};

TEST_P(AutoSpeed, ChoosesWithinItsTimeLimit) {
  const Speed& s = GetParam();
  const Recipe recipe =
      read_recipe(cat(testing::kSourceFolder, "/recipes/", s.recipe),
                  {"memory.activation_checkpointing=auto", cat("data.sequence_length=", s.length),
                   cat("parallel.context_parallel_degree=", s.context), cat("train.global_batch_size=", s.batch)},
                  Purpose::plan);
  Problems problems;
  const models::Model model(models::read_description(resolve_path(recipe, recipe.model.config), problems));
  const std::clock_t start = std::clock();  // CPU time of this process, since the machine may run other work
  const plan::Forecaster forecaster(recipe, model, s.ranks, plan::load_target("h200"), plan::this_machine(), 1);
  const plan::Forecast f = forecaster.forecast();
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  std::printf("%s on %d ranks: %s in %.3f s\n", s.recipe, s.ranks, runs(f.checkpointing()).c_str(), seconds);
  EXPECT_TRUE(f.fits());
  EXPECT_LT(seconds, (step::kAddressSanitizer ? 10 : 1) * s.seconds);
}

INSTANTIATE_TEST_SUITE_P(Llama, AutoSpeed,
                         ::testing::Values(Speed{"llama-3.1-8b-16k.yaml", 4, 4, 131072, 1, 2.0},
                                           Speed{"llama-3.1-8b-16k.yaml", 8, 1, 16384, 64, 2.0},
                                           Speed{"llama-3.1-70b-16k.yaml", 1024, 1, 16384, 1024, 5.0},
                                           Speed{"llama-3.1-70b-16k.yaml", 1024, 8, 131072, 256, 5.0}));

// The result of PolicyCandidates against all ways to assign blocks to candidates.
TEST(PolicyCandidates, FindsTheFastestMixByItsEstimate) {
  const RandomStream random(5, "mixes");
  std::uint64_t drawn = 0;
  for (int round = 0; round < 50; ++round) {
    std::vector<plan::PolicyCandidate> candidates;
    double stored = 1000, seconds = 10;
    for (int r = 0; r < 5; ++r) {
      candidates.push_back({{testing::kPolicies[r]}, stored, 4000 + 6 * stored, seconds});
      stored -= 1 + static_cast<double>(random.below(240, drawn++));
      seconds += 0.01 * static_cast<double>(1 + random.below(100, drawn++));
    }
    const plan::PolicyCandidates policies(candidates, 6);
    for (double budget = candidates.back().needed_bytes - 100; budget < candidates.front().needed_bytes + 200;
         budget += 97) {
      double best = 1e300;
      for (int code = 0; code < 5 * 5 * 5 * 5 * 5 * 5; ++code) {
        double stores = 0, takes = 0;
        for (int block = 0, rest = code; block < 6; ++block, rest /= 5) {
          stores += candidates[static_cast<std::size_t>(rest % 5)].stored_bytes;
          takes += candidates[static_cast<std::size_t>(rest % 5)].seconds / 6;
        }
        if (4000 + stores <= budget) best = std::min(best, takes);
      }
      const auto mix = policies.fastest(budget);
      ASSERT_EQ(mix.has_value(), best < 1e300) << budget;
      if (!mix) continue;
      EXPECT_NEAR(mix->seconds, best, 1e-9);
      EXPECT_LE(mix->needed_bytes, budget);
      const std::vector<plan::BlockPolicy> list = policies.list(*mix);
      EXPECT_EQ(list.size(), 6u);
      EXPECT_TRUE(std::is_sorted(list.rbegin(), list.rend()));
    }
  }
}

}  // namespace auto_test
}  // namespace hawser
