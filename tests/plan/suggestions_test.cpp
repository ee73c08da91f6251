// A recipe that does not fit is rejected with suggestions: their plans fit, keep length and batch, and run.
#include <gtest/gtest.h>

#include <set>

#include <cstdio>

#include "config/config.h"
#include "plan/forecast.h"
#include "support.h"

namespace hawser {
namespace suggestions_test {

Recipe small_recipe() {
  Recipe recipe;
  recipe.data.sequence_length = 128;
  recipe.data.pack = Packing::chunks;
  recipe.train.global_batch_size = 8;
  recipe.train.micro_batch_size = 8;
  recipe.run.ranks = 1;
  return recipe;
}

plan::Forecaster forecaster(const Recipe& recipe, const models::Model& model, int world = 1) {
  return {recipe, model, world, plan::load_target("cpu"), plan::this_machine(), 1};
}

// On GPUs, tensor ranks where they make a recipe fit; those that divide the model only, and never on processors.
TEST(Suggestions, NameTensorRanksThatDivideTheModel) {
  const auto degrees = [](std::int64_t heads, const char* target) {
    const models::Model model(testing::llama_description({.width = 1024,
                                                          .heads = heads,
                                                          .kv_heads = heads,
                                                          .head_dim = 64,
                                                          .inner = 4096,
                                                          .vocabulary = 32000,
                                                          .blocks = 8}));
    Recipe recipe = small_recipe();
    recipe.data.sequence_length = 16384;
    recipe.train.micro_batch_size = 1;
    recipe.run.ranks = 4;
    const auto planner = [&] {
      return plan::Forecaster(recipe, model, 4, plan::load_target(target),
                              {.cores = 4, .memory = std::int64_t{1} << 50}, 1);
    };
    const plan::Forecast all = planner().forecast();
    recipe.memory.capacity = Bytes(all.largest().overhead + all.largest().costs.total_bytes * 65 / 100);
    std::set<std::string> out;
    for (const plan::Suggestion& suggestion : planner().suggestions(40)) {
      for (const plan::Change& change : suggestion.changes) {
        if (change.key == "parallel.tensor_parallel_degree") out.insert(change.value);
      }
    }
    return out;
  };
  EXPECT_TRUE(degrees(16, "h200").contains("4"));
  EXPECT_EQ(degrees(6, "h200"), std::set<std::string>{"2"});
  EXPECT_TRUE(degrees(16, "cpu").empty());
}

TEST(Suggestions, AreRankedFitKeepTheBatchAndRun) {
  const models::Model model(testing::llama_description({.blocks = 6}));
  Recipe recipe = small_recipe();
  const plan::Forecast all = forecaster(recipe, model).forecast();
  recipe.memory.capacity = Bytes(all.largest().overhead + all.largest().costs.total_bytes * 6 / 10);
  const plan::Forecaster tight = forecaster(recipe, model);
  ASSERT_FALSE(tight.forecast().fits());
  const std::vector<plan::Suggestion> suggestions = tight.suggestions(plan::kSuggestions);
  ASSERT_EQ(suggestions.size(), 3u);
  std::printf("%s\n", plan::rejection(recipe, tight.forecast(), {suggestions, {}}).c_str());
  double before = 1e300;
  for (const plan::Suggestion& suggestion : suggestions) {
    EXPECT_LE(suggestion.tokens_per_second, before);
    before = suggestion.tokens_per_second;
    // The flags give the suggestion's recipe.
    std::vector<std::string> flags;
    for (const plan::Change& change : suggestion.changes) flags.push_back(change.key + "=" + change.value);
    const Recipe typed = override_recipe(recipe, flags);
    EXPECT_EQ(recipe_json(typed), recipe_json(suggestion.recipe));
    EXPECT_EQ(typed.data.sequence_length, recipe.data.sequence_length);
    EXPECT_EQ(typed.train.global_batch_size, recipe.train.global_batch_size);
    Problems problems;
    check_layout(typed, 1, problems);
    EXPECT_TRUE(problems.empty()) << problems.lines();
    EXPECT_NO_THROW(plan::check_capacity(typed, model, 1, 1));

    const plan::Layout layout = forecaster(typed, model).forecast().layout;
    const auto mesh = comm::make_self_mesh();
    const auto device = make_cpu_device();
    engine::Session session(model, layout, *device, *mesh, {step::Purpose::train}, typed.memory.capacity);
    EXPECT_LE(session.planned_bytes() + all.largest().overhead, typed.memory.capacity->value());
    testing::Steps steps(session);
    EXPECT_GT(steps.run(step::Purpose::train), 0.1);
  }
}

TEST(Suggestions, ARejectionIsExitCodeFourAndReportsFewerSuggestions) {
  const models::Model model(testing::llama_description({.blocks = 2}));
  Recipe recipe = small_recipe();
  recipe.memory.capacity = Bytes(1 << 20);
  try {
    plan::check_capacity(recipe, model, 1, 1);
    FAIL() << "a megabyte is not enough";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::does_not_fit);
    EXPECT_NE(std::string(error.what()).find("no settings were found"), std::string::npos) << error.what();
  }
  // Capacity for the smallest setting and little more.
  Recipe min = small_recipe();
  min.memory.activation_checkpointing = Checkpointing::full;
  min.train.micro_batch_size = 1;
  recipe.memory.capacity = Bytes(forecaster(min, model).forecast().needed());
  const auto suggestions = forecaster(recipe, model).suggestions(plan::kSuggestions);
  ASSERT_FALSE(suggestions.empty());
  for (const plan::Suggestion& suggestion : suggestions) EXPECT_LE(suggestion.needed, recipe.memory.capacity->value());
  EXPECT_LT(suggestions.size(), 3u);
  EXPECT_NE(plan::rejection(recipe, forecaster(recipe, model).forecast(), {suggestions, {}}).find("only "),
            std::string::npos);
}

models::ModelDescription llama_70b() {
  return testing::llama_description({.width = 8192,
                                     .heads = 64,
                                     .kv_heads = 8,
                                     .head_dim = 128,
                                     .inner = 28672,
                                     .vocabulary = 128256,
                                     .blocks = 80,
                                     .tied = false});
}

// A model far too large for the ranks: the answer comes without a plan of all micro-batches, and names ranks that are
// enough.
TEST(Suggestions, NameTheRanksOnWhichALargeModelFits) {
  const models::Model model(llama_70b());
  Recipe recipe = small_recipe();
  recipe.data.sequence_length = 16384;
  recipe.train.global_batch_size = 64;
  recipe.train.micro_batch_size = 1;
  recipe.memory.activation_checkpointing = Checkpointing::full;
  const auto on = [&](const Recipe& with, int world, const char* target) {
    return plan::Forecaster(with, model, world, plan::load_target(target), plan::this_machine(), 1);
  };
  const plan::Forecast two = on(recipe, 2, "h200").forecast();
  EXPECT_FALSE(two.fits());
  EXPECT_EQ(two.layout.micro_batches, 32);
  const plan::Alternatives instead = on(recipe, 2, "h200").alternatives();
  EXPECT_TRUE(instead.suggestions.empty()) << "the state alone needs 420 GB a rank";
  ASSERT_TRUE(instead.ranks);
  EXPECT_EQ(instead.ranks->flags(), cat("--ranks ", instead.ranks->ranks));
  EXPECT_TRUE(on(recipe, instead.ranks->ranks, "h200").forecast().fits());
  EXPECT_FALSE(on(recipe, instead.ranks->ranks / 2, "h200").forecast().fits());
  const std::string line = plan::rejection(recipe, two, instead);
  EXPECT_NE(line.find(cat("it fits from --ranks ", instead.ranks->ranks, " (")), std::string::npos) << line;
  // Processes of one CPU share its memory, so more of them do not help.
  EXPECT_FALSE(on(recipe, 2, "cpu").fitting_ranks());

  // The flags are enough for a recipe with a smaller batch, replicas and no recompute.
  recipe.train.global_batch_size = 4;
  recipe.parallel.hybrid_shard_degree = 2;
  recipe.memory.activation_checkpointing = Checkpointing::none;
  const auto more = on(recipe, 2, "h200").fitting_ranks();
  ASSERT_TRUE(more);
  std::vector<std::string> flags;
  for (const plan::Change& change : more->changes) flags.push_back(change.key + "=" + change.value);
  EXPECT_EQ(flags, (std::vector<std::string>{"memory.activation_checkpointing=auto", "parallel.hybrid_shard_degree=0",
                                             cat("train.global_batch_size=", more->ranks)}));
  const Recipe typed = override_recipe(recipe, flags);
  Problems problems;
  check_layout(typed, more->ranks, problems);
  EXPECT_TRUE(problems.empty()) << problems.lines();
  EXPECT_TRUE(on(typed, more->ranks, "h200").forecast().fits());
}

// Later micro-batches are like the second, so two of them forecast a step of many.
TEST(Suggestions, AStepThatDoesNotFitIsForecastFromTwoMicroBatches) {
  const models::Model model(testing::llama_description({.blocks = 6}));
  for (const Checkpointing checkpointing : {Checkpointing::none, Checkpointing::automatic}) {
    Recipe recipe = small_recipe();
    recipe.train.micro_batch_size = 1;
    recipe.memory.activation_checkpointing = checkpointing;
    if (checkpointing == Checkpointing::automatic) recipe.memory.activation_checkpointing = Checkpointing::block;
    const plan::Forecast all = forecaster(recipe, model).forecast();
    ASSERT_TRUE(all.fits());
    recipe.memory.activation_checkpointing = checkpointing;
    recipe.memory.capacity = Bytes(1 << 20);
    const plan::Forecast some = forecaster(recipe, model).forecast();
    EXPECT_FALSE(some.fits());
    EXPECT_EQ(some.layout.micro_batches, 8);
    EXPECT_NEAR(double(some.needed()), double(all.needed()), 0.02 * double(all.needed()));
    EXPECT_NEAR(some.seconds, all.seconds, 0.01 * all.seconds);
    EXPECT_NEAR(some.largest().costs.flops, all.largest().costs.flops, 1e-6 * all.largest().costs.flops);
    EXPECT_NEAR(some.tokens_per_second, all.tokens_per_second, 0.01 * all.tokens_per_second);
  }
}

TEST(Suggestions, UseMoreRanksOfTheMeshOnLargeModels) {
  Recipe recipe = small_recipe();
  recipe.data.sequence_length = 4096;
  recipe.train.micro_batch_size = 1;
  recipe.parallel.hybrid_shard_degree = 1;
  const models::Model model(testing::llama_description(testing::smollm2_sizes()));
  recipe.memory.capacity = Bytes(forecaster(recipe, model, 4).forecast().needed() * 45 / 100);
  const auto suggestions = forecaster(recipe, model, 4).suggestions(plan::kSuggestions);
  ASSERT_EQ(suggestions.size(), 3u);
  for (const plan::Suggestion& suggestion : suggestions) {
    std::printf("%s: %.0f tokens/s\n", suggestion.flags().c_str(), suggestion.tokens_per_second);
    Problems problems;
    check_layout(suggestion.recipe, 4, problems);
    EXPECT_TRUE(problems.empty());
  }
}

TEST(Suggestions, MixesAreFormattedAsRuns) {
  const plan::Change mix{"memory.activation_checkpointing", "[3*full,none]"};
  EXPECT_EQ(mix.flag(), "--set 'memory.activation_checkpointing=[3*full,none]'");
  const Recipe typed = override_recipe(small_recipe(), {mix.key + "=" + mix.value});
  EXPECT_EQ(typed.memory.per_layer, (std::vector<Checkpointing>{Checkpointing::full, Checkpointing::full,
                                                                Checkpointing::full, Checkpointing::none}));
}

}  // namespace suggestions_test
}  // namespace hawser
