// hawser plan: without a recipe, for several numbers of ranks, and with a price.
#include "base/testing/test_paths.h"
#include "cli/testing/binary.h"

namespace hawser {
namespace plan_test {

class Plan : public testing::Binary {
 protected:
  const std::string model_ = (testing::tiny("gqa") / "config.json").string();
};

TEST_F(Plan, NeedsNoRecipe) {
  const std::string plan = "plan --model " + model_ + " --target h200 --json";
  const nlohmann::json one = json(plan);
  EXPECT_EQ(one["cost"]["tokens_per_step"], 4096);
  EXPECT_NE(hawser(plan).err.find("without a recipe, a plan for data.sequence_length=4096, train.global_batch_size=1, "
                                  "memory.activation_checkpointing=auto"),
            std::string::npos);
  const nlohmann::json set = json(plan + " --ranks 2 --set data.sequence_length=1K --set train.steps=10 --price 3");
  EXPECT_EQ(set["mesh"]["ranks"], 2);
  EXPECT_EQ(set["cost"]["tokens_per_step"], 2048);
  EXPECT_EQ(set["cost"]["tokens"], 20480);
  EXPECT_DOUBLE_EQ(set["cost"]["price"].get<double>(), 3 * set["cost"]["rank_hours"].get<double>());
  EXPECT_DOUBLE_EQ(set["cost"]["rank_hours"].get<double>(), 2 * set["run_seconds"].get<double>() / 3600);
  rejected("plan r.yaml --model " + model_, {"both a recipe and --model (expected one of them)"});
  rejected("plan --price 1", {"plan: RECIPE is missing; try hawser plan --help"});
}

TEST_F(Plan, SaysWhatIsInFloat32) {
  const auto precision = [&](const std::string& set) {
    const std::string out = hawser("plan --model " + model_ + " --target h200" + set).out;
    const std::size_t at = out.find("\nprecision: ");
    return at == std::string::npos ? out : out.substr(at + 12, out.find('\n', at + 1) - at - 12);
  };
  EXPECT_EQ(precision(""), "bfloat16, float32 master weights, moments and gradients");
  EXPECT_EQ(precision(" --set optimizer.kind=adamw_8bit"), "bfloat16, float32 master weights and gradients");
  EXPECT_EQ(precision(" --set optimizer.kind=adamw_8bit --set optimizer.master_dtype=bf16"),
            "bfloat16, float32 gradients");
}

TEST_F(Plan, ComparesNumbersOfRanks) {
  const std::string plan = "plan --model " + model_ + " --target h200 --set train.global_batch_size=4 --ranks 1,3,4";
  const nlohmann::json plans = json(plan + " --json")["plans"];
  ASSERT_EQ(plans.size(), 3u);
  EXPECT_EQ(plans[0]["ranks"], "1");
  EXPECT_EQ(plans[0]["fits"], true);
  EXPECT_NE(plans[1]["problem"].get<std::string>().find("batch does not divide over the ranks"), std::string::npos);
  EXPECT_LT(plans[2]["seconds"], plans[0]["seconds"]);
  EXPECT_EQ(plans[2]["seconds"], json("plan --model " + model_ +
                                      " --target h200 --set train.global_batch_size=4 --ranks "
                                      "4 --json")["seconds"])
      << "a line is the plan of its ranks";
  EXPECT_NE(hawser(plan).out.find("\n  ranks "), std::string::npos);
  const testing::Ran none = hawser(plan + " --memory 1MB");
  EXPECT_EQ(none.code, 4);
  EXPECT_NE(none.err.find("fits on none of these numbers of ranks"), std::string::npos) << none.err;
  rejected("plan --ranks 2,x --model " + model_,
           {"wrong value (expected a whole number of at least 1, got x) at --ranks"});
}

TEST_F(Plan, ComparesAlternatives) {
  const std::string plan = "plan --model " + model_ + " --target h200 --alternatives";
  const nlohmann::json plans = json(plan + " --json")["plans"];
  ASSERT_GT(plans.size(), 5u);
  EXPECT_EQ(plans[0]["with"], "as it is");
  const auto has = [&](const std::string& what) {
    return std::ranges::any_of(plans, [&](const nlohmann::json& one) { return one["with"] == "--set " + what; });
  };
  EXPECT_TRUE(has("precision.compute=fp8"));
  EXPECT_TRUE(has("memory.activation_checkpointing=full"));
  EXPECT_NE(hawser(plan).out.find("\ninstead of what the recipe says\n"), std::string::npos);
}

}  // namespace plan_test
}  // namespace hawser
