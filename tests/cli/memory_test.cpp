// Commands that run a model reject what does not fit before allocating, with the message of `hawser plan`.
#include "base/testing/test_paths.h"
#include "cli/testing/binary.h"

namespace hawser {
namespace memory_test {

using testing::tiny;

class Memory : public testing::Binary {
 protected:
  void SetUp() override {
    Binary::SetUp();
    std::string lines;
    for (int line = 0; line < 40; ++line) {
      nlohmann::json ids = nlohmann::json::array();
      for (int i = 0; i < 60; ++i) ids.push_back((line * 31 + i * i * 7) % 96);
      lines += nlohmann::json{{"input_ids", ids}}.dump() + "\n";
    }
    write("text.jsonl", lines);
    write("recipe.yaml", "model: {config: " + (tiny("gqa") / "config.json").string() +
                             "}\n"
                             "data: {train: text.jsonl, sequence_length: 60}\n"
                             "train: {steps: 1, global_batch_size: 16, micro_batch_size: 8}\n"
                             "run: {threads: 1}\n"
                             "output: run\n");
  }

  void does_not_fit(const std::string& arguments, const std::string& words) {
    const testing::Ran ran = hawser(arguments);
    EXPECT_EQ(ran.code, 4) << arguments << "\n" << ran.err;
    EXPECT_EQ(ran.out, "") << arguments;
    EXPECT_NE(ran.err.find(words), std::string::npos) << arguments << "\n" << ran.err;
  }
};

// The message and the suggestions of `plan`; each suggestion, added to the same command, runs.
TEST_F(Memory, FitRejectsWhatPlanRejects) {
  for (const std::string ranks : {" --ranks 1", " --ranks 2"}) {
    const nlohmann::json plan = json("plan recipe.yaml --json" + ranks)["memory"][0];
    const std::int64_t space = plan["needed"].get<std::int64_t>() - plan["plan"].get<std::int64_t>() / 4;
    const std::string same = "recipe.yaml" + ranks + " --memory " + std::to_string(space) + "B";
    const testing::Ran planned = hawser("plan " + same);
    ASSERT_EQ(planned.code, 4) << planned.err;
    const testing::Ran fit = hawser("fit " + same);
    EXPECT_EQ(fit.code, 4);
    EXPECT_EQ(fit.out, "");
    EXPECT_EQ(fit.err, planned.err);
    EXPECT_FALSE(testing::fs::exists(folder_ / "run")) << "rejected after something was made";
    int suggestions = 0;
    for (const std::string& line : testing::lines_of(fit.err)) {
      const auto flags = line.find("--set "), end = line.find("   (");
      if (flags == std::string::npos || end == std::string::npos) continue;
      ++suggestions;
      const testing::Ran run = hawser("fit " + same + " " + line.substr(flags, end - flags));
      EXPECT_EQ(run.code, 0) << line << "\n" << run.err;
      testing::fs::remove_all(folder_ / "run");
    }
    EXPECT_GE(suggestions, 1) << fit.err;
  }
}

TEST_F(Memory, UnderMpirunIsReportedOnce) {
  const testing::Ran ran =
      shell("OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun -q --oversubscribe -np 2 " +
            std::string(testing::kHawser) + " fit recipe.yaml --memory 1MB");
  EXPECT_EQ(ran.code, 4) << ran.err;
  const std::string line = "hawser: recipe.yaml: does not fit (expected at most ";
  const auto first = ran.err.find(line);
  EXPECT_NE(first, std::string::npos) << ran.err;
  EXPECT_EQ(ran.err.find(line, first + 1), std::string::npos) << ran.err;
  EXPECT_FALSE(testing::fs::exists(folder_ / "run"));
}

// Without --memory the machine's memory is the limit. The shell's limit protects the machine from a bug.
TEST_F(Memory, AModelLargerThanTheMachineIsRejected) {
  nlohmann::json config = testing::json_of(tiny("gqa") / "config.json");
  config["hidden_size"] = 16384;
  config["intermediate_size"] = 65536;
  config["num_hidden_layers"] = 80;
  config["head_dim"] = 128;
  config["num_attention_heads"] = 128;
  config["num_key_value_heads"] = 128;
  write("huge.json", config.dump());
#ifdef __SANITIZE_ADDRESS__  // which needs terabytes of addresses
  const std::string limit;
#else
  const std::string limit = "ulimit -v 16000000; ";
#endif
  const testing::Ran ran =
      shell(limit + std::string(testing::kHawser) + " fit recipe.yaml --set model.config=huge.json");
  EXPECT_EQ(ran.code, 4) << ran.err;
  EXPECT_NE(ran.err.find("the device's memory"), std::string::npos) << ran.err;
  does_not_fit("bench step --model huge.json --sequence-length 64", "does not fit");
}

// `fit` runs and records the policy that `plan` chooses for auto. Results equal those of a run without recompute, bit
// by bit. A run that is resumed with other memory chooses again.
TEST_F(Memory, AutoIsChosenByThePlanAndLeavesResultsAsTheyAre) {
  const std::string automatic = " --set memory.activation_checkpointing=auto --set train.steps=2";
  for (const std::string ranks : {" --ranks 1", " --ranks 2"}) {
    const auto needed = [&](const std::string& policy) {
      const std::string command = "plan recipe.yaml --json --set memory.activation_checkpointing=" + policy + ranks;
      return json(command)["memory"][0]["needed"].get<std::int64_t>();
    };
    const std::int64_t none = needed("none"), min = needed("projections");
    ASSERT_LT(min, none);
    const std::string same = "recipe.yaml" + ranks + automatic, kept = " --set output=kept",
                      again = " --set output=again";
    const std::string tight = " --memory " + std::to_string(min + (none - min) / 2 + min / 90) + "B";
    const nlohmann::json all = json("fit " + same + kept + " --json --set memory.activation_checkpointing=none");
    EXPECT_EQ(all["activation_checkpointing"], "none");
    const std::string chosen = json("plan " + same + tight + " --json")["checkpointing"];
    ASSERT_TRUE(chosen.starts_with("auto: ")) << chosen;
    EXPECT_NE(chosen, "auto: 2*none");
    const std::string list = "[" + chosen.substr(6) + "]";

    const nlohmann::json some = json("fit " + same + again + tight + " --json");
    EXPECT_EQ(some["activation_checkpointing"], list);
    EXPECT_EQ(some["train_loss"], all["train_loss"]);
    const auto metrics = testing::lines_of(folder_.read("again/metrics.jsonl"));
    ASSERT_EQ(metrics.size(), 2u);
    EXPECT_EQ(nlohmann::json::parse(metrics[0])["activation_checkpointing"], list);
    EXPECT_FALSE(nlohmann::json::parse(metrics[1]).contains("activation_checkpointing"));
    for (const char* what : {"loss", "grad_norm"}) {
      const auto plain = testing::lines_of(folder_.read("kept/metrics.jsonl"));
      EXPECT_EQ(nlohmann::json::parse(metrics[1])[what], nlohmann::json::parse(plain[1])[what]) << what;
    }
    // The folder's recipe has the list in place of auto, and `plan` accepts it.
    const auto saved = testing::json_of(folder_ / "again/recipe.json")["memory"]["activation_checkpointing"];
    EXPECT_TRUE(saved.is_array());
    EXPECT_EQ(json("plan again/recipe.json --json" + ranks)["checkpointing"], chosen.substr(6));

    const std::string more = " --resume --json --set train.steps=3";
    const nlohmann::json resumed = json("fit " + same + again + more);
    EXPECT_EQ(resumed["activation_checkpointing"], "[2*none]");
    EXPECT_EQ(resumed["train_loss"], json("fit " + same + kept + more + tight)["train_loss"]);
    for (const char* folder : {"kept", "again"}) testing::fs::remove_all(folder_ / folder);
  }
  does_not_fit("fit recipe.yaml --memory 1MB" + automatic, "does not fit");
}

TEST_F(Memory, EvalGenerateAndBenchRespectTheLimit) {
  const std::string model = " --model " + tiny("gqa").string() + " --memory 1MB";
  does_not_fit("eval --data text.jsonl --sequence-length 60" + model, "try a shorter --sequence-length");
  does_not_fit("eval --data text.jsonl --sequence-length 60 --ranks 2" + model, "try a shorter --sequence-length");
  does_not_fit("generate --prompt-ids 1,2,3" + model, "at --memory\n");  // no option helps
  does_not_fit("bench step --sequence-length 64" + model, "does not fit");
}

TEST_F(Memory, NumbersThatNoOneHasAreRejected) {
  const std::string plan = "plan recipe.yaml --set ";
  rejected(plan + "train.global_batch_size=4294967304",
           {"--set: out of range (expected at most 16777216, got 4294967304) at train.global_batch_size"});
  rejected(plan + "data.sequence_length=9200000000000000000",
           {"--set: out of range (expected at most 67108864, got 9200000000000000000) at data.sequence_length"});
  rejected(plan + "run.threads=100000", {"--set: out of range (expected at most 1024, got 100000) at run.threads"});
  rejected(
      plan + "train.global_batch_size=16777216",
      {"--set: too many micro-batches in a step (expected at most 1024, got 2097152: 16777216 sequences, 1 data "
       "rank, micro_batch_size 8) at train.global_batch_size; try more ranks, a larger train.micro_batch_size, or a "
       "smaller global batch"});
  const std::string bench = "bench step --model " + tiny("gqa").string();
  rejected(bench + " --threads 100000", {"wrong value (expected at most 1024, got 100000) at --threads"});
  rejected(bench + " --steps 99999999999999999999999",
           {"wrong value (expected at most 1000000, got 99999999999999999999999) at --steps"});
}

TEST_F(Memory, NoTokenToPredictIsAnError) {
  write("none.jsonl", R"({"input_ids": [1, 2, 3], "labels": [-100, -100, -100]})");
  const std::string eval = "eval --model " + tiny("gqa").string();
  const std::string words =
      ": no token to predict (expected a sequence of two tokens or more, and labels that are not "
      "all -100)";
  rejected(eval + " --data none.jsonl --sequence-length 16", {"none.jsonl" + words});
  rejected(eval + " --data text.jsonl --sequence-length 1",
           {"text.jsonl" + words + "; try --sequence-length 2 or more"});
}

}  // namespace memory_test
}  // namespace hawser
