// Pipeline parallelism in the commands: fit, resume, inspect, eval, plan, its timeline, bench step, and errors.
#include <filesystem>
#include <sstream>

#include "parallel_commands.h"

namespace hawser {
namespace pipeline_test {

class Pipeline : public testing::ParallelCommands {
 protected:
  void SetUp() override {
    ParallelCommands::SetUp();
    write_recipe(6, "pipeline_parallel_degree: 2", "optimizer: {schedule: constant}\n");
  }

  // As the metrics have them of the last step.
  double flops_of_a_token(const std::string& run) const {
    std::istringstream lines(folder_.read(run + "/metrics.jsonl"));
    double out = 0;
    for (std::string line; std::getline(lines, line);) {
      const auto json = nlohmann::json::parse(line);
      if (json.contains("model_flops_per_second"))
        out = json["model_flops_per_second"].get<double>() / json["tokens_per_second"].get<double>();
    }
    EXPECT_GT(out, 0);
    return out;
  }
};

// What stages have saved, others resume, and none: to the same loss.
TEST_F(Pipeline, EveryScheduleTrainsAndContinuesTheOthers) {
  const std::string one =
      "fit recipe.yaml --ranks 1 --json --set output=whole --set parallel.pipeline_parallel_degree=1";
  const double loss = json(one)["validation_loss"];
  const std::string begun = fit("--set train.steps=2");
  EXPECT_TRUE(says(begun, "pipeline partition: auto chose [2*1]; predicted time of a step with equal cuts: ")) << begun;
  EXPECT_TRUE(says(begun,
                   "2 pipeline stages by 1f1b, blocks [2*1], 6 micro-batches per step; planned per rank, by "
                   "stage: "))
      << begun;
  EXPECT_TRUE(says(begun, "% of it stages wait for each other")) << begun;
  EXPECT_TRUE(says(hawser("inspect run/checkpoints/step-00000002").out, "pipeline_parallel_degree 2"));
  for (const char* schedule : {"gpipe", "zero_bubble", "interleaved"}) {
    const std::string cuts =
        std::string(schedule) == "interleaved" ? " --set parallel.pipeline_partition=[1,0,1,0]" : "";
    std::filesystem::remove_all(folder_.path("run2"));
    std::filesystem::copy(folder_.path("run"), folder_.path("run2"), std::filesystem::copy_options::recursive);
    const nlohmann::json resumed = json(
        "fit recipe.yaml --ranks 2 --json --resume --set output=run2 --set "
        "parallel.pipeline_schedule=" +
        std::string(schedule) + cuts);
    EXPECT_NEAR(resumed["validation_loss"].get<double>(), loss, 1e-5 * loss) << schedule;
    EXPECT_EQ(resumed["pipeline_schedule"], schedule);
  }
  const std::string report = folder_.read("run2/report.html");
  EXPECT_TRUE(says(report, "in each of 2 pipeline stages by interleaved with 2 model chunks a stage"));
  EXPECT_TRUE(says(report, "memory planned per rank, by pipeline stage"));
  EXPECT_NEAR(flops_of_a_token("run2"), flops_of_a_token("whole"), 1e-3 * flops_of_a_token("whole"));
  const nlohmann::json alone =
      json("fit recipe.yaml --ranks 1 --json --resume --set parallel.pipeline_parallel_degree=1");
  EXPECT_NEAR(alone["validation_loss"].get<double>(), loss, 1e-5 * loss);
  const std::string eval = "eval --model run --data text.jsonl --sequence-length 24 --gradient-norms";
  const nlohmann::json evaluated = json(eval + " --ranks 2 --set parallel.pipeline_parallel_degree=2"),
                       single = json(eval);
  EXPECT_NEAR(evaluated["loss"].get<double>(), single["loss"].get<double>(), 1e-5);
  ASSERT_EQ(evaluated["gradient_norms"].size(), single["gradient_norms"].size());
  for (const auto& [name, norm] : single["gradient_norms"].items()) {
    EXPECT_NEAR(evaluated["gradient_norms"][name].get<double>(), norm.get<double>(), 1e-4 * norm.get<double>() + 1e-6)
        << name;
  }
}

TEST_F(Pipeline, PlansSayTheBubbleAndDrawTheStep) {
  const std::string plan = "plan recipe.yaml --ranks 2 --target h200 ";
  const std::string text = hawser(plan).out;
  EXPECT_TRUE(says(text, "2 pipeline stages, 6 micro-batches of 1 sequence")) << text;
  EXPECT_TRUE(says(text, "\npipeline: 1f1b, blocks [2*1], auto (equal cuts +0.0%); bubble ")) << text;
  EXPECT_TRUE(says(text, "\nby pipeline stage and rank: ")) << text;
  const nlohmann::json planned = json(plan + "--json");
  EXPECT_EQ(planned["pipeline"]["stages"], 2);
  EXPECT_EQ(planned["pipeline"]["schedule"], "1f1b");
  EXPECT_EQ(planned["pipeline"]["partition"], (std::vector{1, 1}));
  EXPECT_GT(planned["pipeline"]["bubble"].get<double>(), 0.05);
  EXPECT_TRUE(says(hawser(plan + "--alternatives").out, "--set parallel.pipeline_schedule=zero_bubble"));
  const std::string listed = hawser(plan + "--alternatives --set parallel.pipeline_partition=[1,1]").out;
  EXPECT_TRUE(says(listed, "--set parallel.pipeline_parallel_degree=1 --set parallel.pipeline_partition=auto"))
      << listed;

  const testing::Ran drawn = hawser(plan + "--set parallel.pipeline_schedule=zero_bubble --timeline step.svg");
  EXPECT_TRUE(says(drawn.out, "wrote step.svg")) << drawn.out << drawn.err;
  const std::string svg = folder_.read("step.svg");
  for (const char* part : {"<svg", ">rank 0<", ">rank 1<", ">receive<"}) EXPECT_TRUE(says(svg, part)) << part;
  EXPECT_EQ(hawser(plan + "--timeline step.json").code, 0);
  const testing::Ran inspected = hawser("inspect step.json");
  EXPECT_TRUE(says(inspected.out, "timeline of rank 0")) << inspected.out << inspected.err;
  rejected("plan recipe.yaml --ranks 2,4 --target h200 --timeline step.svg",
           {"--timeline is for one number of ranks (got 2) at --ranks"});
  rejected(plan + "--timeline .", {".: a folder (expected a file to write) at --timeline"});
}

// The measured step has the form of the predicted one.
TEST_F(Pipeline, BenchComparesTheBubbleWithThePredictedOne) {
  const nlohmann::json bench =
      json("bench step --model " + config_ +
           " --ranks 2 --steps 1 --sequence-length 64 --json --trace step.json --set train.global_batch_size=6 --set "
           "train.micro_batch_size=1 --set parallel.pipeline_parallel_degree=2");
  EXPECT_EQ(bench["pipeline"], "2 pipeline stages by 1f1b, blocks [2*1]");
  for (const char* which : {"idle", "predicted_idle"}) {
    EXPECT_GT(bench["trace"][which].get<double>(), 0.0) << which;
    EXPECT_LT(bench["trace"][which].get<double>(), 1.0) << which;
  }
}

TEST_F(Pipeline, ErrorsSayWhatWorks) {
  rejected("fit recipe.yaml --ranks 3",
           {"recipe.yaml: ranks do not divide by the degrees (expected ranks a multiple of 2, got 3 ranks) at "
            "parallel.pipeline_parallel_degree, line 4; try --ranks 2 or 4"});
  rejected("fit recipe.yaml --ranks 4 --set parallel.pipeline_parallel_degree=4",
           {"--set: more pipeline stages than blocks (expected at most 2 blocks, got 4) at "
            "parallel.pipeline_parallel_degree; try parallel.pipeline_parallel_degree: 2 or less"});
  rejected("plan recipe.yaml --ranks 2 --set parallel.pipeline_partition=[1,2]",
           {"--set: the blocks of the stages are not those of the model (expected a sum of 2 blocks, got [1,2]: 3) at "
            "parallel.pipeline_partition; try parallel.pipeline_partition: auto, or [2*1]"});
  rejected("fit recipe.yaml --ranks 2 --set parallel.pipeline_schedule=interleaved",
           {"recipe.yaml: more model chunks than blocks (expected at most 2 blocks, got 2 stages of 2 = 4) at "
            "parallel.pipeline_virtual_stages; try parallel.pipeline_schedule: 1f1b"});
  rejected("bench step --model " + config_ + " --ranks 2 --roofline --set parallel.pipeline_parallel_degree=2",
           {"no roofline of a step with pipeline stages (expected one stage, got 2) at --roofline; try --trace, which "
            "shows what stages wait for"});
  rejected("fit recipe.yaml --ranks 2 --set parallel.pipeline_schedule=dualpipe",
           {"--set: unknown value (expected 1f1b, gpipe, interleaved or zero_bubble, got dualpipe) at "
            "parallel.pipeline_schedule"});
}

}  // namespace pipeline_test
}  // namespace hawser
