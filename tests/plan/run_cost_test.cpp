// What a run costs, and tables of plans.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "plan/comparison.h"
#include "plan/report.h"
#include "support.h"

namespace hawser {
namespace run_cost_test {

// Two stages of a step of 2 s on 4 ranks.
plan::Forecast forecast_of_two_seconds() {
  plan::Forecast forecast;
  forecast.layout.mesh.shard = 4;
  forecast.stages.resize(2);
  forecast.stages[0].costs.model_flops = 1e12;
  forecast.stages[1].costs.model_flops = 3e12;
  forecast.capacity = 1 << 20;
  forecast.seconds = 2;
  forecast.tokens_per_second = 500;
  return forecast;
}

TEST(RunCost, IsThatOfAllRanks) {
  plan::Target target;
  target.peak = 4e12;
  const plan::Forecast forecast = forecast_of_two_seconds();
  const plan::RunCost run = plan::cost_of_run(forecast, target, 1000, 3600, 2.5);
  EXPECT_DOUBLE_EQ(run.utilization.value(), 0.25) << "2 TFLOP a rank in 2 s, of 4 TFLOP/s";
  EXPECT_EQ(run.tokens.value(), 3'600'000);
  EXPECT_DOUBLE_EQ(run.seconds.value(), 7200);
  EXPECT_DOUBLE_EQ(run.rank_hours.value(), 8) << "two hours of 4 ranks";
  EXPECT_DOUBLE_EQ(run.price.value(), 20);
  EXPECT_DOUBLE_EQ(run.rank_hours_per_billion, 1e9 / 500 / 3600 * 4);
  // Without steps, that of 10^9 tokens; without a peak or a price, none.
  const plan::RunCost open = plan::cost_of_run(forecast, {}, 1000, {}, 2.0);
  EXPECT_FALSE(open.utilization || open.tokens || open.seconds || open.rank_hours);
  EXPECT_DOUBLE_EQ(open.price.value(), 2 * open.rank_hours_per_billion);
  EXPECT_FALSE(plan::cost_of_run(forecast, {}, 1000, 10, {}).price);
}

TEST(RunCost, IsPrintedShort) {
  EXPECT_EQ(plan::hours_text(0.12345), "0.123");
  EXPECT_EQ(plan::hours_text(59.3), "59.3");
  EXPECT_EQ(plan::hours_text(123456), "123K");
  EXPECT_EQ(plan::price_text(1234.5), "1234.50");
  EXPECT_EQ(plan::utilization_text({.utilization = 0.426}), "43%");
}

TEST(Comparison, HasALineForEachPlan) {
  plan::Target target;
  target.cuda = true;
  target.peak = 4e12;
  plan::Forecast large = forecast_of_two_seconds();
  large.capacity = -1;
  std::vector<plan::Compared> rows;
  for (const plan::Forecast& forecast : {large, forecast_of_two_seconds()}) {
    rows.push_back({.what = cat(rows.size() + 1),
                    .forecast = forecast,
                    .cost = plan::cost_of_run(forecast, target, 1000, 3600, 2.5),
                    .problem = ""});
  }
  rows.push_back({.what = "3", .forecast = {}, .cost = {}, .problem = "no layout"});
  EXPECT_EQ(plan::comparison_text("ranks", rows, target),
            "  ranks  memory  step  tokens/s  MFU  time  GPU-hours  price\n"
            "  1         0 B  does not fit\n"
            "  2         0 B   2 s       500  25%   2 h          8  20.00\n"
            "  3      no layout\n");
  const auto plans = nlohmann::json::parse(plan::comparison_json("ranks", rows, target))["plans"];
  ASSERT_EQ(plans.size(), 3u);
  EXPECT_EQ(plans[0]["fits"], false);
  EXPECT_EQ(plans[1]["cost"]["price"], 20.0);
  EXPECT_EQ(plans[2], (nlohmann::json{{"ranks", "3"}, {"problem", "no layout"}}));
}

TEST(Target, SaysWhatWasNotMeasured) {
  const plan::Target h200 = plan::load_target("h200"), h100 = plan::load_target("h100");
  EXPECT_EQ(h200.assumed_rates(8), "the rate of the link to host memory");
  EXPECT_EQ(h200.assumed_rates(9), "the rate of links between machines and of the link to host memory");
  EXPECT_EQ(h100.assumed_rates(1), "the rate of the link to host memory");
  EXPECT_EQ(h100.assumed_rates(2), "the rate of links in a machine and of the link to host memory");
  EXPECT_EQ(plan::load_target("cpu").assumed_rates(4), "");
}

// The plan of a large model on too few ranks says what would be needed.
TEST(Rejection, NamesTheLeastThatIsNeeded) {
  const models::Model model(testing::llama_description({.blocks = 6}));
  Recipe recipe;
  recipe.data.sequence_length = 128;
  recipe.data.pack = Packing::chunks;
  recipe.train.global_batch_size = 2;
  recipe.train.micro_batch_size = 2;
  const auto rejected = [&](std::int64_t capacity) {
    recipe.memory.capacity = Bytes(capacity);
    const plan::Forecaster forecaster(recipe, model, 1, plan::load_target("cpu"), plan::this_machine(), 1);
    return plan::rejection(recipe, forecaster.forecast(), forecaster.alternatives());
  };
  const std::int64_t state = 12 * model.parameters();
  EXPECT_NE(rejected(state / 2).find(cat("\nweights and optimizer state alone need ", format_bytes(Bytes(state)))),
            std::string::npos)
      << rejected(state / 2);
  const std::string little = rejected(state + 1000);
  EXPECT_NE(little.find("\nthe least that was found is about "), std::string::npos) << little;
  EXPECT_NE(little.find(" per rank, with --set "), std::string::npos) << little;
}

}  // namespace run_cost_test
}  // namespace hawser
