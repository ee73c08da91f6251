// Context parallelism in its forms, in the commands: fit, resume, inspect, eval, plan, bench step, and errors.
#include "parallel_commands.h"

namespace hawser {
namespace context_test {

class Context : public testing::ParallelCommands {
 protected:
  void SetUp() override {
    ParallelCommands::SetUp();
    write_recipe(2, "context_parallel_degree: 2");
  }
  std::string fit_by(const std::string& form, const std::string& options = "") {
    return fit("--set parallel.context_comm=" + form + " " + options);
  }
};

// What one form has saved another one resumes, to the same loss.
TEST_F(Context, EveryFormTrainsAndContinuesTheOthers) {
  const double loss = json("fit recipe.yaml --ranks 2 --json --set output=whole")["validation_loss"];
  EXPECT_TRUE(says(fit_by("ring", "--set train.steps=2"), "context parallel over 2 by ring"));
  EXPECT_TRUE(says(hawser("inspect run/checkpoints/step-00000002").out, "context_comm ring"));
  const nlohmann::json resumed =
      json("fit recipe.yaml --ranks 2 --json --resume --set parallel.context_comm=all_to_all");
  EXPECT_NEAR(resumed["validation_loss"].get<double>(), loss, 1e-5 * loss);
  EXPECT_EQ(resumed["context_comm"], "all_to_all");
  EXPECT_TRUE(says(folder_.read("run/report.html"), "in context-parallel groups of 2 by all_to_all"));
  for (const char* form : {"all_gather", "ring", "all_to_all", "auto"}) {
    const nlohmann::json evaluated = json(
        "eval --model run --data text.jsonl --sequence-length 24 --ranks 2 --set parallel.context_parallel_degree=2 "
        "--set parallel.context_comm=" +
        std::string(form));
    EXPECT_NEAR(evaluated["loss"].get<double>(),
                json("eval --model run --data text.jsonl --sequence-length 24")["loss"].get<double>(), 1e-5)
        << form;
  }
}

TEST_F(Context, AutoSaysWhatItChooses) {
  const std::string out = fit_by("auto", "--set train.steps=1");
  EXPECT_TRUE(says(out, "context parallelism: auto chose ")) << out;
  EXPECT_TRUE(says(out, "predicted step times of others: ")) << out;
  const std::string plan = "plan recipe.yaml --ranks 2 --target h200 --set parallel.context_comm=auto";
  EXPECT_TRUE(says(hawser(plan).out, "\ncontext_comm: auto is ")) << hawser(plan).out;
  const nlohmann::json planned = json(plan + " --json");
  ASSERT_EQ(planned["context_forms"].size(), 3u);
  EXPECT_EQ(planned["context_forms"][0]["context_comm"], planned["mesh"]["context_comm"]);
  EXPECT_TRUE(says(hawser("plan recipe.yaml --ranks 2 --alternatives").out, "--set parallel.context_comm=ring"));
  const testing::Ran bench =
      hawser("bench step --model " + config_ +
             " --ranks 2 --steps 1 --sequence-length 64 --set parallel.context_parallel_degree=2 --set "
             "parallel.context_comm=auto");
  EXPECT_EQ(bench.code, 0) << bench.err;
  EXPECT_TRUE(says(bench.out, "context parallelism")) << bench.out;
  EXPECT_EQ(
      json("bench step --model " + config_ + " --steps 2 --warmup 0 --json --set optimizer.learning_rate=0.1")["steps"]
          .size(),
      2u);
}

TEST_F(Context, ErrorsNameWhatDivides) {
  const std::string plan = "plan recipe.yaml --ranks 6 --set train.global_batch_size=1 ";
  rejected(
      plan + "--set parallel.context_parallel_degree=6 --set parallel.context_comm=all_to_all",
      {"--set: an all-to-all over ranks that do not divide the attention heads (expected a divisor of 4 heads that "
       "divides 2 key-value heads or is a multiple, got 6) at parallel.context_parallel_degree; try "
       "parallel.context_parallel_degree: 4, or parallel.context_comm: ring"});
  rejected(plan + "--set parallel.context_parallel_degree=6 --set parallel.context_all_to_all_degree=2",
           {"--set: only hybrid context parallelism has groups (expected no group, or parallel.context_comm: hybrid, "
            "got 2) at "
            "parallel.context_all_to_all_degree; try removing parallel.context_all_to_all_degree"});
  rejected(
      plan +
          "--set parallel.context_parallel_degree=6 --set parallel.context_comm=hybrid --set "
          "parallel.context_all_to_all_degree=4",
      {"--set: groups do not divide the context ranks (expected a divisor of context_parallel_degree 6, at least 2 "
       "and less than all, got 4) at parallel.context_all_to_all_degree; try parallel.context_all_to_all_degree: 2 "
       "or 3"});
}

// Commands without a recipe reject what fit rejects.
TEST_F(Context, WithoutARecipeGroupsAreChecked) {
  const std::string model = " --model " + config_ + " --ranks 6 --set parallel.context_parallel_degree=6 ";
  const std::string groups = "--set parallel.context_comm=hybrid --set parallel.context_all_to_all_degree=4";
  for (const char* command : {"plan", "bench step", "recipe init"}) {
    const testing::Ran ran = hawser(command + model + groups);
    EXPECT_EQ(ran.code, 2) << command << "\n" << ran.err;
    EXPECT_TRUE(says(ran.err, "groups do not divide the context ranks")) << ran.err;
  }
  const testing::Ran eval =
      hawser("eval --model " + testing::tiny("gqa").string() +
             " --data text.jsonl --sequence-length 24 --ranks 6 --set parallel.context_parallel_degree=6 " + groups);
  EXPECT_TRUE(says(eval.err, "groups do not divide the context ranks")) << eval.err;
  const testing::Ran init = hawser("recipe init --model " + config_ +
                                   " --ranks 6 --set train.global_batch_size=1 --set parallel.context_comm=all_to_all");
  EXPECT_NE(init.code, 134) << init.err;
  EXPECT_FALSE(says(init.err, "internal error")) << init.err;
}

TEST_F(Context, AHybridTrainsAndResumesUnderAuto) {
  const std::string hybrid =
      "fit recipe.yaml --ranks 4 --set parallel.context_parallel_degree=4 --set parallel.context_comm=";
  const testing::Ran fit = hawser(hybrid + "hybrid --set train.steps=2");
  EXPECT_EQ(fit.code, 0) << fit.err;
  EXPECT_TRUE(says(fit.err, "context parallel over 4 by hybrid of 2")) << fit.err;
  const testing::Ran resumed = hawser(hybrid + "auto --resume");
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_TRUE(says(resumed.err, "context parallelism: auto chose ")) << resumed.err;
}

}  // namespace context_test
}  // namespace hawser
