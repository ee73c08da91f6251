// How long `fit` trains (train.epochs), the validation loss before it, and what it prints first and last.
#include <regex>
#include <sstream>

#include "cli/testing/binary.h"

namespace hawser {
namespace epochs_test {

using testing::tiny;

class Epochs : public testing::Binary {
 protected:
  void SetUp() override {
    Binary::SetUp();
    write("text.jsonl", testing::forty_documents());
    write("recipe.yaml", recipe("epochs: 1.5"));
  }
  static std::string recipe(const std::string& train) {
    return "model: {path: " + tiny("tied").string() +
           "}\ndata: {train: text.jsonl, validation_fraction: 0.25, sequence_length: 24}\n"
           "train: {global_batch_size: 4, " +
           train + "}\noptimizer: {learning_rate: 1.0e-2}\noutput: run\n";
  }
  std::vector<nlohmann::json> metrics(const std::string& run = "run") const {
    std::vector<nlohmann::json> out;
    std::istringstream lines(folder_.read(run + "/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) out.push_back(nlohmann::json::parse(line));
    return out;
  }
  static double epoch(const nlohmann::json& line) { return line["data_position"]["epoch"]; }
};

TEST_F(Epochs, TheLastStepIsTheFirstThatReachesThem) {
  const nlohmann::json fit = json("fit recipe.yaml --json");
  const auto lines = metrics();
  ASSERT_GE(lines.size(), 3u);
  EXPECT_EQ(fit["steps"], lines.size());
  EXPECT_GE(epoch(lines.back()), 1.5);
  EXPECT_LT(epoch(lines[lines.size() - 2]), 1.5);
  // The run's recipe repeats the epochs, and a run of as many steps is the same.
  const nlohmann::json stored = testing::json_of(folder_ / "run/recipe.json");
  EXPECT_EQ(stored["train"]["epochs"], 1.5);
  EXPECT_TRUE(stored["train"]["steps"].is_null());
  const std::string steps = std::to_string(lines.size());
  ASSERT_EQ(hawser("fit recipe.yaml --ranks 2 --set output=by-steps --set train.steps=" + steps).code, 0);
  const auto others = metrics("by-steps");
  ASSERT_EQ(others.size(), lines.size());
  for (std::size_t i = 0; i < lines.size(); ++i) {
    EXPECT_NEAR(others[i]["loss"].get<double>(), lines[i]["loss"].get<double>(), 1e-5);
    EXPECT_EQ(others[i]["lr"], lines[i]["lr"]);
  }
}

TEST_F(Epochs, AResumedRunContinuesToTheEpochs) {
  const auto steps_of = [&](const std::string& arguments) {
    return json("fit recipe.yaml --json --set optimizer.schedule=constant " + arguments)["steps"].get<std::size_t>();
  };
  const std::size_t all = steps_of("");
  const auto whole = metrics();
  const std::size_t part = steps_of("--set output=parts --set train.epochs=0.5");
  EXPECT_LT(part, all);
  EXPECT_EQ(steps_of("--set output=parts --resume"), all);
  const auto parts = metrics("parts");
  ASSERT_EQ(parts.size(), whole.size());
  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_EQ(parts[i]["loss"], whole[i]["loss"]);
}

TEST_F(Epochs, StepsAndEpochsExcludeEachOther) {
  write("both.yaml", recipe("epochs: 1.5, steps: 3"));
  rejected("fit both.yaml", {"both.yaml: both train.steps and train.epochs (expected one of the two) at train.epochs, "
                             "line 3; try train.steps: 3 or train.epochs: 1.5 alone"});
  write("none.yaml", recipe("log_every: 1"));
  rejected("fit none.yaml", {"none.yaml: missing key at train.steps; try train: {steps: 1000}, or train: {epochs: 3}"});
  rejected("fit recipe.yaml --set train.epochs=0",
           {"--set: out of range (expected a number above 0 and at most 100000, got 0) at train.epochs"});
  rejected("bench step --sequence-length 64 --model " + tiny("gqa").string() + " --set train.epochs=2",
           {"--set: bench step has no data to repeat at train.epochs; try --steps N"});
  // --set wins over the file.
  EXPECT_EQ(json("fit both.yaml --set train.steps=1 --set train.epochs= --json")["steps"], 1);
  EXPECT_EQ(json("fit recipe.yaml --set train.steps=2 --json")["steps"], 2);
}

TEST_F(Epochs, AWarmUpLongerThanTheEpochsIsRejectedWithTheirSteps) {
  const std::size_t steps = json("fit recipe.yaml --json")["steps"].get<std::size_t>();
  const testing::Ran ran = hawser("fit recipe.yaml --set optimizer.warmup_steps=500");
  EXPECT_EQ(ran.code, 2);
  EXPECT_NE(ran.err.find("--set: warm-up is longer than the run (expected at most " + std::to_string(steps) +
                         ", the steps of train.epochs 1.5, got 500) at optimizer.warmup_steps"),
            std::string::npos)
      << ran.err;
}

// The loss before the first step is that of `eval` for the model that the run starts from, and a resumed run knows it.
TEST_F(Epochs, TheValidationLossBeforeTrainingIsMeasured) {
  const testing::Ran fit = hawser("fit recipe.yaml --ranks 2");
  ASSERT_EQ(fit.code, 0) << fit.err;
  const auto lines = metrics();
  const double before = lines.front()["initial_validation_loss"], after = lines.back()["validation_loss"];
  EXPECT_FALSE(lines[1].contains("initial_validation_loss"));
  const std::string eval = " --data run/data/valid --sequence-length 24";
  EXPECT_NEAR(json("eval --model " + tiny("tied").string() + eval)["loss"].get<double>(), before, 1e-5);
  EXPECT_NEAR(json("eval --model run" + eval)["loss"].get<double>(), after, 1e-5);
  EXPECT_LT(after, before);
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "validation loss %.4f -> %.4f", before, after);
  EXPECT_NE(fit.err.find(text.data()), std::string::npos) << fit.err;

  const nlohmann::json resumed = json("fit recipe.yaml --json --resume --set train.epochs=2");
  EXPECT_EQ(resumed["initial_validation_loss"], before);
  const nlohmann::json other =
      json("fit recipe.yaml --json --resume --set train.epochs=2.5 --set train.evaluate_batches=1");
  EXPECT_FALSE(other.contains("initial_validation_loss")) << "it is of other text";
}

// Bits per byte and a bigram model count all tokens of a file: there are none where labels leave some out.
TEST_F(Epochs, EvalOfLabelledDataHasNoBitsPerByte) {
  copy_of("tied", "model");
  write("model/tokenizer.json", testing::letters_tokenizer());
  write("plain.jsonl", "{\"text\": \"to be or not to be\"}\n{\"text\": \"that is it\"}\n");
  write("asked.jsonl", "{\"prompt\": \"to be or \", \"completion\": \"not to be\"}\n");
  const std::string rest = ", sequence_length: 24}\ntrain: {steps: 1}\noutput: ";
  write("plain.yaml", "model: {path: model}\ndata: {train: plain.jsonl" + rest + "plain\n");
  write("asked.yaml", "model: {path: model}\ndata: {train: asked.jsonl" + rest + "asked\n");
  ASSERT_EQ(hawser("prepare plain.yaml").code, 0);
  ASSERT_EQ(hawser("prepare asked.yaml").code, 0);
  const std::string eval = "eval --model model --sequence-length 24 --data ";
  EXPECT_TRUE(json(eval + "plain/data/train --bigram plain/data/train").contains("bits_per_byte"));
  EXPECT_FALSE(json(eval + "asked/data/train").contains("bits_per_byte"));
  const testing::Ran bigram = hawser(eval + "asked/data/train --bigram plain/data/train");
  EXPECT_EQ(bigram.code, 2);
  EXPECT_NE(bigram.err.find("a bigram model has no loss to compare with"), std::string::npos) << bigram.err;
}

// Nor where a run leaves out a part of long documents, and with it their loss.
TEST_F(Epochs, EvalOfARunThatLeavesTextOutHasNoBitsPerByte) {
  copy_of("tied", "model");
  write("model/tokenizer.json", testing::letters_tokenizer());
  write("plain.jsonl", "{\"text\": \"to be or not to be\"}\n{\"text\": \"that\"}\n");
  for (const std::string action : {"split", "truncate", "drop"}) {
    write("recipe.yaml", "model: {path: model}\ndata: {train: plain.jsonl, sequence_length: 8, long_documents: " +
                             action + "}\ntrain: {steps: 1}\noutput: " + action + "\n");
    ASSERT_EQ(hawser("fit recipe.yaml").code, 0);
    const std::string eval = "eval --model " + action + " --data " + action + "/data/train";
    const std::string bigram = " --bigram split/data/train";
    if (action == "split") {
      EXPECT_TRUE(json(eval + bigram).contains("bits_per_byte"));
      continue;
    }
    EXPECT_FALSE(json(eval).contains("bits_per_byte")) << action;
    const testing::Ran ran = hawser(eval + bigram);
    EXPECT_EQ(ran.code, 2) << action;
    EXPECT_NE(ran.err.find("a bigram model has no loss to compare with"), std::string::npos) << action << ran.err;
  }
}

TEST_F(Epochs, FitCountsTheTokensThatItTrainsOn) {
  const testing::Ran fit = hawser("fit recipe.yaml --set data.sequence_length=12 --set data.long_documents=truncate");
  ASSERT_EQ(fit.code, 0) << fit.err;
  std::smatch share;
  ASSERT_TRUE(std::regex_search(fit.err, share, std::regex("packing efficiency ([0-9]+)%"))) << fit.err;
  EXPECT_LE(std::stoi(share[1]), 100) << fit.err;
}

TEST_F(Epochs, FitPrintsItsSettingsFirstAndTheNextCommandsLast) {
  const testing::Ran fit = hawser("fit recipe.yaml --ranks 2 --set 'output=a run'");
  ASSERT_EQ(fit.code, 0) << fit.err;
  const std::size_t first = fit.err.find("\nstep 1/");
  ASSERT_NE(first, std::string::npos) << fit.err;
  const std::string begin = "\n" + fit.err.substr(0, first);
  for (const char* pattern :
       {"\nmodel   tied: llama, [0-9.]+K parameters, all trained; computes in float32\n",
        "\ndata    [0-9]+ tokens in [0-9]+ sequences of 24 \\(packing efficiency [0-9]+%\\); [0-9]+ of [0-9]+ "
        "documents are longer and split; evaluations of [0-9]+ "
        "held-out sequences?\n",
        "\nsteps   [0-9]+ of 4 sequences \\(96 tokens\\), 1[.][0-9]+ epochs; learning rate 0.01, cosine decay to 0\n",
        "\nranks   2 ranks on the CPU, [0-9]+ threads? each, state sharded over 2, 2 micro-batches per step; [0-9.]+ "
        "[KM]iB planned per rank\n",
        "\noutput  .*a run; a checkpoint of [0-9.]+ [KM]iB every 15 minutes and at the end\n",
        "\ntime    about .* per step, .* for all steps \\(predicted\\)\n"}) {
    EXPECT_TRUE(std::regex_search(begin, std::regex(pattern))) << pattern << begin;
  }
  EXPECT_NE(fit.err.find("  epoch 1.6/1.6  "), std::string::npos) << fit.err;
  const std::size_t next = fit.err.find("\nnext:\n");
  ASSERT_NE(next, std::string::npos) << fit.err;
  std::istringstream commands(fit.err.substr(next + 7));
  std::string generate, eval, convert;
  std::getline(commands, generate);
  std::getline(commands, eval);
  std::getline(commands, convert);
  // They work as printed, with the user's file and folder filled in.
  const auto typed = [](std::string command, const std::string& word, const std::string& by) {
    command = command.substr(command.find("hawser ") + 7);
    return command.replace(command.find(word), word.size(), by);
  };
  EXPECT_EQ(hawser(typed(eval, "FILE", "text.jsonl")).code, 0) << eval;
  EXPECT_EQ(hawser(typed(convert, "FOLDER", "out")).code, 0) << convert;
  EXPECT_EQ(hawser(typed(generate, "IDS", "5,6") + " --max-tokens 2").code, 0) << generate;
}

// The rules read what they have seen before the interruption: with fewer steps a run than a rule needs, too.
TEST_F(Epochs, AResumedRunHasTheFindingsOfOneThatWasNotInterrupted) {
  std::string train, valid;
  for (int document = 0; document < 18; ++document) {
    std::string& to = document < 12 ? train : valid;
    to += "{\"input_ids\": [";
    for (int i = 0; i < 22; ++i)
      to += std::to_string((document * document * 13 + i * (7 + document)) % 61) + (i < 21 ? ", " : "]}\n");
  }
  write("small.jsonl", train);
  write("held_out.jsonl", valid);
  write("rules.yaml", "model: {config: " + (tiny("tied") / "config.json").string() +
                          "}\ndata: {train: small.jsonl, validation: held_out.jsonl, sequence_length: 24}\n"
                          "train: {steps: 12, global_batch_size: 4, evaluate_every: 1}\n"
                          "optimizer: {learning_rate: 2.0e-2, schedule: constant, warmup_steps: 0}\noutput: whole\n");
  const auto findings = [&](const std::string& run) {
    std::string all;
    std::ifstream lines(folder_ / run / "metrics.jsonl");
    for (std::string line; std::getline(lines, line);) {
      const nlohmann::json step = nlohmann::json::parse(line);
      if (step.contains("findings")) all += step["step"].dump() + " " + step["findings"].dump() + "\n";
    }
    return all;
  };
  ASSERT_EQ(hawser("fit rules.yaml").code, 0);
  const std::string whole = findings("whole");
  EXPECT_NE(whole.find("overfitting"), std::string::npos) << whole;
  ASSERT_EQ(hawser("fit rules.yaml --set output=parts --set train.steps=2").code, 0);
  for (const char* steps : {"4", "6", "8", "10", "12"}) {
    ASSERT_EQ(hawser("fit rules.yaml --set output=parts --resume --set train.steps=" + std::string(steps)).code, 0);
  }
  EXPECT_EQ(findings("parts"), whole);
}

}  // namespace epochs_test
}  // namespace hawser
