// --target: what plans and recipes of GPUs that Hawser never ran on say, and what they leave out.
#include "base/text.h"
#include "recipe_init.h"

namespace hawser {
namespace targets_test {

class Targets : public testing::RecipeInit {
 protected:
  const std::string config_ = (testing::tiny("gqa") / "config.json").string();
  const std::string mark_ = "never run on this hardware: the rates are from data sheets";
  const std::vector<std::string> have_run_ = {"h100", "h200"};
  const std::vector<std::string> never_run_ = {"a100-40gb", "a100-80gb", "b200",    "h100-pcie",
                                               "l40s",      "rtx3090",   "rtx4090", "rtx5090"};
};

TEST_F(Targets, HelpAndErrorsNameAll) {
  std::vector<std::string> names = never_run_;
  names.insert(names.end(), have_run_.begin(), have_run_.end());
  names.emplace_back("cpu");
  const std::string wrong = hawser("plan --model " + config_ + " --target gtx1080").err;
  for (const std::string& name : names) {
    EXPECT_NE(hawser("plan --help").out.find(name), std::string::npos) << name;
    EXPECT_NE(hawser("recipe init --help").out.find(name), std::string::npos) << name;
    EXPECT_NE(wrong.find(name), std::string::npos) << name;
  }
  const std::string all = "a100-40gb, a100-80gb, b200, cpu, h100, h100-pcie, h200, l40s, rtx3090, rtx4090, rtx5090";
  for (const std::string command : {"plan", "recipe init"}) {
    rejected(command + " --model " + config_ + " --target v100",
             {"compute capability 7.0 has no bf16 and is not supported (expected " + all + ", got v100) at --target"});
  }
}

TEST_F(Targets, PlansSayThatHawserNeverRanThere) {
  for (const std::string& target : never_run_) {
    const std::string plan = "plan --model " + config_ + " --target " + target + " --ranks 2";
    EXPECT_NE(hawser(plan).out.find("\n" + mark_ + "\n"), std::string::npos) << target;
    EXPECT_EQ(json(plan + " --json")["never_run"], true) << target;
    EXPECT_NE(hawser(plan + ",4").out.find("\n" + mark_ + "\n"), std::string::npos) << target;
    EXPECT_EQ(json(plan + ",4 --json")["never_run"], true) << target;
    EXPECT_NE(hawser(plan + " --memory 1MB").out.find(mark_), std::string::npos) << "a plan that does not fit";
  }
  for (const std::string& target : have_run_) {
    const std::string plan = "plan --model " + config_ + " --ranks 2 --target " + target;
    EXPECT_EQ(hawser(plan).out.find(mark_), std::string::npos) << target;
    EXPECT_EQ(json(plan + " --json")["never_run"], false) << target;
  }
}

TEST_F(Targets, RecipesForThemPlan) {
  write("data.jsonl", testing::forty_documents());
  const std::string data = "recipe init --model " + tiny("gqa") + " --data data.jsonl --ranks 2 --target ";
  for (const std::string& target : never_run_) {
    const testing::Ran ran = hawser(data + target + " --force --output recipe.yaml");
    ASSERT_EQ(ran.code, 0) << ran.err;
    EXPECT_EQ(ran.err.find("hawser: " + mark_ + "\n"), 0u) << ran.err;
    EXPECT_NE(ran.err.find("next: hawser plan recipe.yaml --target " + target + ", hawser fit"), std::string::npos)
        << ran.err;
    EXPECT_NE(text().find("\n# Hawser was " + mark_ + ".\n"), std::string::npos) << text();
    EXPECT_NE(text().find("\n  compute: auto"), std::string::npos) << text();
    EXPECT_NE(text().find("\n  base: auto"), std::string::npos) << text();
    goes("plan recipe.yaml --target " + target);
  }
  EXPECT_NE(hawser(data + "rtx3090 --memory 1MB").err.find(mark_), std::string::npos) << "nothing fits";
  const testing::Ran has_run = hawser(data + "h200 --force --output recipe.yaml");
  EXPECT_EQ((has_run.err + text()).find(mark_), std::string::npos) << has_run.err;
}

TEST_F(Targets, Fp8IsRejectedAndNotProposedWhereThereIsNone) {
  const std::string model = "--model " + tiny("gqa") + " ";
  for (const auto& [target, capability] : {std::pair("a100-80gb", "8.0"), {"rtx3090", "8.6"}}) {
    const std::string why = cat("compute capability ", capability, " has no FP8; 8.9 and later do (expected auto, ");
    const std::string on = cat(" --target ", target), fp8 = " --set precision.compute=fp8";
    const std::string got = cat(", got fp8 for ", target, ") at ");
    for (const std::string command : {"plan ", "recipe init "}) {
      const std::string line =
          cat("--set: ", why, "float32 or bf16", got, "precision.compute; try precision.compute: bf16");
      rejected(command + model + on + fp8, {line});
      rejected(command + model + on + fp8 + " --set adapter.kind=lora",
               {line + ", with adapter.base: nf4 to save memory"});
    }
    const std::string alternatives = hawser("plan " + model + on + " --alternatives").out;
    EXPECT_NE(alternatives.find("memory.activation_checkpointing=full"), std::string::npos);
    EXPECT_EQ(alternatives.find("fp8"), std::string::npos) << alternatives;
    const testing::Ran none = hawser("plan " + model + on + " --memory 1MB");
    EXPECT_EQ(none.code, 4);
    EXPECT_EQ((none.out + none.err).find("fp8"), std::string::npos) << none.out << none.err;
  }
  EXPECT_NE(hawser("plan " + model + "--target rtx4090 --alternatives").out.find("precision.compute=fp8"),
            std::string::npos);
  EXPECT_EQ(hawser("plan " + model + "--target rtx4090 --set precision.compute=fp8").code, 0);
}

// What GPUs without NVLink send takes the time of PCIe.
TEST_F(Targets, CommunicationTakesTheLinkOfTheTarget) {
  const auto seconds = [&](const std::string& target) {
    const nlohmann::json plan = json("plan --model " + config_ +
                                     " --ranks 8 --set data.sequence_length=64 --set "
                                     "parallel.tensor_parallel_degree=1 --json --target " +
                                     target);
    return plan["busy_seconds"]["communication"].get<double>();
  };
  EXPECT_GT(seconds("rtx4090"), seconds("a100-80gb"));
  EXPECT_GE(seconds("a100-80gb"), seconds("b200"));
}

}  // namespace targets_test
}  // namespace hawser
