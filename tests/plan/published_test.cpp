// Published models of every family are planned for a node of GPUs and for eight nodes.
#include <gtest/gtest.h>

#include "models/families.h"
#include "models/testing/published.h"
#include "plan/forecast.h"

namespace hawser {
namespace published_test {

TEST(Published, ArePlannedOn8And64Ranks) {
  for (const models::testing::Published& published : models::testing::kPublished) {
    Problems problems;
    const models::Model model(models::describe_config(published.config, "config.json", problems));
    ASSERT_EQ(problems.lines(), "") << published.name;
    for (const int ranks : {8, 64}) {
      Recipe recipe;
      recipe.data.sequence_length = 2048;
      recipe.train.global_batch_size = 64;
      if (ranks == 64) recipe.memory.activation_checkpointing = Checkpointing::automatic;
      const plan::Forecast forecast =
          plan::Forecaster(recipe, model, ranks, plan::load_target("h200"), plan::this_machine(), 1).forecast();
      const std::string text = cat(published.name, " on ", ranks, " ranks");
      // Float32 weights and moments, and a copy of the weights in bf16.
      const double state = 14.0 * static_cast<double>(published.parameters) / ranks;
      EXPECT_GT(static_cast<double>(forecast.needed()), state) << text;
      EXPECT_LT(static_cast<double>(forecast.needed()), 2 * state + 100e9) << text;
      EXPECT_TRUE(forecast.fits()) << text;
      EXPECT_GT(forecast.largest().costs.flops, 0) << text;
      EXPECT_GT(forecast.largest().costs.traffic.at("shard"), 2.0 * static_cast<double>(published.parameters)) << text;
      EXPECT_GT(forecast.tokens_per_second, 0) << text;
    }
  }
}

// The search for suggestions plans many steps, whose weights have two sizes.
TEST(Published, SuggestionsForAModelThatDoesNotFit) {
  Problems problems;
  const models::Model model(models::describe_config(models::testing::kPublished[0].config, "config.json", problems));
  Recipe recipe;
  recipe.data.sequence_length = 2048;
  recipe.data.pack = Packing::chunks;
  recipe.train.global_batch_size = 64;
  recipe.memory.activation_checkpointing = Checkpointing::none;
  recipe.memory.capacity = Bytes(25'000'000'000);
  const plan::Forecaster forecaster(recipe, model, 8, plan::load_target("h200"), plan::this_machine(), 1);
  EXPECT_FALSE(forecaster.forecast().fits());
  EXPECT_EQ(forecaster.alternatives().suggestions.size(), 3u);
}

}  // namespace published_test
}  // namespace hawser
