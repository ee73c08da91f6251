// Several named validation sets: data.validation as a map, and train.early_stopping.metric.
#include "base/testing/test_paths.h"
#include "cli/testing/binary.h"

namespace hawser {
namespace validation_sets_test {

namespace fs = std::filesystem;
using testing::tiny;

// `same` is a part of the training data, `other` is unlike them: training lowers the loss of the one, and raises that of
// the other and, soon, of both together.
class ValidationSets : public testing::Binary {
 protected:
  void SetUp() override {
    Binary::SetUp();
    write("train.jsonl", documents(0, 24, [](int line, int i) { return line * 31 + i * i * 7; }));
    write("same.jsonl", documents(0, 6, [](int line, int i) { return line * 31 + i * i * 7; }));
    write("other.jsonl", documents(40, 47, [](int line, int i) { return line * 17 + i * 5; }));
    write("more.jsonl", documents(47, 52, [](int line, int i) { return line * 17 + i * 5; }));
    write("recipe.yaml", recipe("{same: same.jsonl, other: [other.jsonl, more.jsonl]}"));
  }
  template <class Id>
  static std::string documents(int from, int to, Id id) {
    std::string lines;
    for (int line = from; line < to; ++line) {
      nlohmann::json ids = nlohmann::json::array();
      for (int i = 0; i < 5 + line % 23; ++i) ids.push_back(id(line, i) % 96);
      lines += nlohmann::json{{"input_ids", ids}}.dump() + "\n";
    }
    return lines;
  }
  static std::string recipe(const std::string& validation) {
    return "model: {config: " + (tiny("tied") / "config.json").string() +
           "}\ndata: {train: train.jsonl, sequence_length: 24, validation: " + validation +
           "}\ntrain: {steps: 9, global_batch_size: 4, evaluate_every: 3}\n"
           "optimizer: {learning_rate: 1.0e-2, schedule: constant}\noutput: run\n";
  }
  std::vector<nlohmann::json> metrics(const std::string& run = "run") const {
    std::vector<nlohmann::json> out;
    for (const std::string& line : testing::lines_of(folder_.read(run + "/metrics.jsonl"))) {
      out.push_back(nlohmann::json::parse(line));
    }
    return out;
  }
  std::int64_t step_of(const std::string& checkpoint) {
    return json("inspect " + checkpoint + " --json")["step"].get<std::int64_t>();
  }
};

// Steps 3, 6 and 9 are evaluated, and steps 4, 8 and 9 saved.
TEST_F(ValidationSets, ACheckpointBetweenEvaluationsHasNoLoss) {
  ASSERT_EQ(hawser("fit recipe.yaml --set checkpoint.every_steps=4 --set checkpoint.keep_last=5").code, 0);
  const auto has_loss = [&](int step) {
    return folder_.read(cat("run/checkpoints/step-0000000", step, "/manifest.json")).find("\"validation_loss") !=
           std::string::npos;
  };
  EXPECT_FALSE(has_loss(4));
  EXPECT_FALSE(has_loss(8));
  EXPECT_TRUE(has_loss(9));
}

// The best checkpoint is of other validation data than this recipe's, older checkpoints are of the same: a run that
// trains no further keeps what it found.
TEST_F(ValidationSets, AFinishedRunKeepsTheBestOfOtherData) {
  const std::string saves = " --set checkpoint.every_steps=3 --set checkpoint.keep_last=9";
  ASSERT_EQ(hawser("fit recipe.yaml" + saves).code, 0);
  write("less.yaml", recipe("same.jsonl"));
  const std::string resumed = saves + " --resume --set train.steps=12";
  ASSERT_EQ(hawser("fit less.yaml" + resumed).code, 0);
  const std::string best = folder_.read("run/best/manifest.json");
  EXPECT_EQ(step_of("run/best"), 12);
  ASSERT_EQ(hawser("fit recipe.yaml" + resumed).code, 0);
  EXPECT_EQ(folder_.read("run/best/manifest.json"), best);
}

TEST_F(ValidationSets, HaveTheLossesOfEvalAndTheTotalOfOneSet) {
  const testing::Ran ran = hawser("fit recipe.yaml");
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.err.find("; evaluations of "), std::string::npos) << ran.err;
  EXPECT_NE(ran.err.find(" held-out sequences (other, same)\n"), std::string::npos) << ran.err;
  const auto lines = metrics();
  ASSERT_EQ(lines.size(), 9u);
  const nlohmann::json& last = lines.back();
  const auto loss_on = [&](const std::string& data) {
    return json("eval --model run --data " + data)["loss"].get<double>();
  };
  const double same = last["validation_losses"]["same"], other = last["validation_losses"]["other"];
  EXPECT_EQ(last["validation_losses"].size(), 2u);
  EXPECT_NEAR(same, loss_on("same.jsonl"), 1e-5);
  EXPECT_NEAR(other, loss_on("run/data/valid-other"), 1e-5);
  EXPECT_NEAR(loss_on("run/data/valid-same"), loss_on("same.jsonl"), 1e-5);
  const std::string printed =
      cat("step 9: validation loss ", ran.err.substr(ran.err.find("step 9: validation loss ") + 24, 6));
  EXPECT_NE(ran.err.find(printed + " over 219 tokens; other "), std::string::npos) << ran.err;
  EXPECT_NE(folder_.read("run/report.html").find("Loss of each validation set, nats per target"), std::string::npos);

  // All files as one set.
  write("one.yaml", recipe("[other.jsonl, more.jsonl, same.jsonl]"));
  for (const std::string ranks : {"1", "2"}) {
    ASSERT_EQ(hawser("fit one.yaml --set output=one --ranks " + ranks).code, 0);
    ASSERT_EQ(hawser("fit recipe.yaml --set output=sets --ranks " + ranks).code, 0);
    const auto one = metrics("one"), sets = metrics("sets");
    ASSERT_EQ(sets.size(), lines.size());
    EXPECT_NEAR(sets[0]["initial_validation_loss"].get<double>(), one[0]["initial_validation_loss"].get<double>(),
                1e-5);
    for (const std::size_t i : {2u, 5u, 8u}) {
      SCOPED_TRACE(cat(ranks, " ranks, step ", i + 1));
      EXPECT_NEAR(sets[i]["validation_loss"].get<double>(), one[i]["validation_loss"].get<double>(), 1e-5);
      EXPECT_FALSE(one[i].contains("validation_losses"));
      for (const char* set : {"same", "other"}) {
        EXPECT_NEAR(sets[i]["validation_losses"][set].get<double>(), lines[i]["validation_losses"][set].get<double>(),
                    1e-5);
      }
    }
  }
  EXPECT_EQ(hawser("fit recipe.yaml --set train.evaluate_batches=1 --set output=few").code, 0);
  EXPECT_EQ(metrics("few").back()["validation_losses"].size(), 2u) << "batches of each set";
}

TEST_F(ValidationSets, AreTheSameInAResumedRun) {
  ASSERT_EQ(hawser("fit recipe.yaml --set output=whole").code, 0);
  ASSERT_EQ(hawser("fit recipe.yaml --set train.steps=3").code, 0);
  const nlohmann::json resumed = json("fit recipe.yaml --resume --json");
  const auto whole = metrics("whole"), parts = metrics();
  ASSERT_EQ(parts.size(), whole.size());
  for (std::size_t i = 0; i < whole.size(); ++i) {
    for (const char* key : {"loss", "validation_loss", "validation_losses", "initial_validation_losses"}) {
      EXPECT_EQ(parts[i].value(key, nlohmann::json()), whole[i].value(key, nlohmann::json())) << i << " " << key;
    }
  }
  EXPECT_EQ(resumed["validation_losses"], whole.back()["validation_losses"]);
  EXPECT_EQ(resumed["initial_validation_losses"], whole.front()["initial_validation_losses"]);
  // Other sets of the same text are other validation data.
  const testing::Ran renamed = hawser(
      "fit recipe.yaml --resume --set train.steps=12 --set "
      "'data.validation={same: same.jsonl, odd: [other.jsonl, more.jsonl]}'");
  EXPECT_EQ(renamed.code, 0) << renamed.err;
  EXPECT_NE(renamed.err.find("the validation data have changed, so losses cannot be compared"), std::string::npos)
      << renamed.err;
  EXPECT_TRUE(metrics().back()["validation_losses"].contains("odd"));
}

TEST_F(ValidationSets, OneDecidesWhatIsBest) {
  const auto fit = [&](const std::string& metric, const std::string& more = "") {
    const testing::Ran ran = hawser(
        "fit recipe.yaml --set train.steps=15 --set checkpoint.keep_last=20 --set "
        "checkpoint.every_steps=3 --set output=" +
        metric + " --set train.early_stopping.metric=" + metric + more);
    EXPECT_EQ(ran.code, 0) << ran.err;
    return ran;
  };
  const testing::Ran all = fit("validation");
  EXPECT_EQ(step_of("validation/best"), 3);
  EXPECT_NE(all.err.find("the lowest validation loss was "), std::string::npos) << all.err;
  fit("same");
  EXPECT_EQ(step_of("same/best"), 15);
  const nlohmann::json best = json("inspect same --json")["best"];
  EXPECT_EQ(best["step"], 15);
  EXPECT_EQ(best["validation_losses"], metrics("same").back()["validation_losses"]);
  EXPECT_EQ(hawser("eval --model same --data same.jsonl").err.find("try --best"), std::string::npos);
  // The set's loss also decides when the run ends: that of all rises from step 3 on.
  EXPECT_NE(fit("validation", " --set train.early_stopping.patience=2 --force")
                .err.find("early stopping after step 9: no lower validation loss in 2 evaluations"),
            std::string::npos);
  EXPECT_EQ(fit("same", " --set train.early_stopping.patience=2 --force").err.find("early stopping after step"),
            std::string::npos);
  const testing::Ran other = fit("other", " --set train.early_stopping.patience=2 --ranks 2");
  EXPECT_NE(other.err.find("; early stopping after 2 evaluations without a lower validation loss of other\n"),
            std::string::npos)
      << other.err;
  EXPECT_NE(
      other.err.find("early stopping after step 9: no lower validation loss of other in 2 evaluations; the lowest "
                     "was "),
      std::string::npos)
      << other.err;
  EXPECT_NE(other.err.find("the lowest validation loss of other was "), std::string::npos) << other.err;
  EXPECT_EQ(step_of("other/best"), 3);
  EXPECT_NE(hawser("eval --model other --data same.jsonl")
                .err.find("the checkpoint of step 3 was better than the last one: validation loss of other "),
            std::string::npos);
  // A resumed run with another metric chooses among the checkpoints that there are.
  const testing::Ran changed = hawser(
      "fit recipe.yaml --resume --set train.steps=16 --set checkpoint.keep_last=20 --set output=same --set "
      "train.early_stopping.metric=other");
  EXPECT_NE(changed.err.find("training has changed: "), std::string::npos) << changed.err;
  EXPECT_NE(changed.err.find("train.early_stopping.metric was \"same\" and is \"other\""), std::string::npos)
      << changed.err;
  EXPECT_EQ(step_of("same/best"), 3);
}

TEST_F(ValidationSets, ArePreparedAndShown) {
  const testing::Ran made = hawser("prepare recipe.yaml");
  EXPECT_EQ(made.code, 0) << made.err;
  EXPECT_NE(made.out.find("  valid-other  "), std::string::npos) << made.out;
  EXPECT_NE(made.out.find("  train        "), std::string::npos) << made.out;
  const nlohmann::json prepared = json("prepare recipe.yaml --json");
  EXPECT_EQ(prepared["made_now"], false);
  EXPECT_EQ(prepared["valid-other"]["documents"], 12);
  EXPECT_EQ(prepared["valid-same"]["documents"], 6);
  EXPECT_EQ(json("inspect data recipe.yaml --validation-set same --json")["statistics"]["lengths"]["count"], 6);
  const auto shown = [&](const std::string& options) { return hawser("inspect data recipe.yaml " + options).err; };
  EXPECT_EQ(shown("--validation"),
            "hawser: recipe.yaml: several validation sets (expected other or same) at --validation-set; try "
            "--validation-set other\n");
  EXPECT_EQ(shown("--validation-set sane"),
            "hawser: recipe.yaml: no validation set of this name (expected other or same, got sane) at "
            "--validation-set; try same\n");
  // Prepared before, without sources; and token files by prefix.
  ASSERT_EQ(hawser("fit recipe.yaml").code, 0);
  fs::rename(folder_ / "run/data", folder_ / "tokens");
  const std::string begin = "model: {config: " + (tiny("tied") / "config.json").string() + "}\ndata: {",
                    end =
                        ", sequence_length: 24}\ntrain: {steps: 9, global_batch_size: 4, evaluate_every: 3, "
                        "early_stopping: {metric: same}}\n"
                        "optimizer: {learning_rate: 1.0e-2, schedule: constant}\noutput: again\n";
  write("folder.yaml", begin + "prepared: tokens" + end);
  write("prefixes.yaml",
        begin + "train: tokens/train, validation: {same: tokens/valid-same, other: tokens/valid-other.bin}" + end);
  for (const std::string file : {"folder.yaml", "prefixes.yaml"}) {
    EXPECT_EQ(json("fit " + file + " --json --force")["validation_losses"], metrics().back()["validation_losses"])
        << file;
    EXPECT_FALSE(fs::exists(folder_ / "again/data")) << file;
  }
  rejected("fit folder.yaml --set train.early_stopping.metric=sane --force",
           {"--set: no validation set of this name (expected validation or other or same, got sane) at "
            "train.early_stopping.metric; try same"});
}

TEST_F(ValidationSets, AllProblemsAreReportedAtOnce) {
  write("wrong.yaml", recipe("{same: [same.jsonl, gone.jsonl], other: same.jsonl}"));
  rejected("fit wrong.yaml --set train.early_stopping.metric=poems",
           {"--set: no validation set of this name (expected validation or other or same, got poems) at "
            "train.early_stopping.metric",
            "gone.jsonl: no such file at data.validation.same[1], line 2 of wrong.yaml",
            folder_.path("same.jsonl") + ": a file of two validation sets (expected a file of one set, got other and "
                                         "same) at data.validation.same, line 2 of wrong.yaml"});
  write("masked.jsonl", "{\"input_ids\": [1, 2], \"labels\": [-100, -100]}\n");
  write("none.yaml", recipe("{same: same.jsonl, masked: masked.jsonl}"));
  const testing::Ran masked = hawser("fit none.yaml");
  EXPECT_EQ(masked.code, 2);
  EXPECT_NE(masked.err.find("valid-masked.idx: no token to predict in the validation data (expected documents of two "
                            "tokens or more, and labels that are not all -100); try other data.validation.masked"),
            std::string::npos)
      << masked.err;
}

TEST_F(ValidationSets, AreWrittenByRecipeInit) {
  const testing::Ran ran = hawser("recipe init --model " + tiny("tied").string() +
                                  " --data train.jsonl --output made.yaml --short --set "
                                  "'data.validation={same: same.jsonl, other: [other.jsonl, more.jsonl]}'");
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(folder_.read("made.yaml")
                .find("  validation: {\"other\":[\"other.jsonl\",\"more.jsonl\"],\"same\":\"same.jsonl\"}\n"),
            std::string::npos)
      << folder_.read("made.yaml");
  EXPECT_EQ(hawser("plan made.yaml").code, 0);
  EXPECT_EQ(hawser("prepare made.yaml").code, 0);
}

}  // namespace validation_sets_test
}  // namespace hawser
