// Resumes that are rejected: one line for each mistake, with its place, and hints that the checkpoint allows.
#include "cli/testing/binary.h"

namespace hawser {
namespace resume_errors_test {

namespace fs = std::filesystem;

class ResumeErrors : public testing::Binary {
 protected:
  void SetUp() override {
    Binary::SetUp();
    write("data.jsonl", testing::forty_documents());
    copy_of("gqa", "m");
    write("m/tokenizer.json", testing::letters_tokenizer());
  }

  // `output`.yaml, and its run of two steps.
  void train(const std::string& output, const std::string& model, const std::string& more = "") {
    write(output + ".yaml", "model: {" + model + "}\ndata: {train: data.jsonl, sequence_length: 32}\n" +
                                "train: {steps: 2, global_batch_size: 4}\n" + more +
                                "run: {threads: 1}\noutput: " + output + "\n");
    const testing::Ran ran = hawser("fit " + output + ".yaml");
    ASSERT_EQ(ran.code, 0) << ran.err;
  }
  static std::string resumed(const std::string& output, const std::string& options) {
    return "fit " + output + ".yaml --resume " + options;
  }
  static std::string in(const std::string& output) { return output + "/checkpoints/step-00000002: "; }
  static std::string set(const std::string& key, const std::string& value) {
    return "--set " + key + "=" + value + " ";
  }

  const std::string anew_ = " that the run was started with, or --set output=... for a new run";
};

// A run in the folder of another recipe's run is rejected; one that trains the same longer is not, nor with --force.
TEST_F(ResumeErrors, AFolderIsNotSharedByTwoRecipes) {
  ASSERT_NO_FATAL_FAILURE(train("run", "path: m"));
  copy_of("gqa", "n");
  write("n/tokenizer.json", testing::letters_tokenizer());
  write("more.jsonl", testing::forty_documents());
  const std::string hint = "; try --set output=... for this run, or --force, which moves the other one to earlier-N";
  const auto other = [&](const std::string& what, const std::string& then, const std::string& now,
                         const std::string& key) {
    return "run: the folder has a run with " + what + " (expected " + then + ", got " + now + ") at " + key +
           ", --set" + hint;
  };
  const std::string here = folder_.path("");
  rejected("fit run.yaml " + set("model.path", "n"),
           {other("another model", "\"m\"", "\"" + here + "n\"", "model.path")});
  rejected("fit run.yaml " + set("adapter.kind", "lora"),
           {other("another adapter", "\"none\"", "\"lora\"", "adapter.kind")});
  rejected("fit run.yaml " + set("data.train", "[data.jsonl,more.jsonl]"),
           {other("other training data", "[\"data.jsonl\"]", "[\"" + here + "data.jsonl\",\"" + here + "more.jsonl\"]",
                  "data.train")});
  EXPECT_FALSE(fs::exists(folder_ / "run/earlier-1"));
  EXPECT_EQ(hawser("fit run.yaml " + set("train.steps", "3")).code, 0);
  EXPECT_TRUE(fs::exists(folder_ / "run/earlier-1"));
  EXPECT_EQ(hawser("fit run.yaml --force " + set("model.path", "n")).code, 0);
  EXPECT_TRUE(fs::exists(folder_ / "run/earlier-2"));
}

// What changes how the run trains is said, old and new.
TEST_F(ResumeErrors, ChangedSettingsOfTrainingAreSaid) {
  ASSERT_NO_FATAL_FAILURE(train("run", "path: m"));
  const std::string same = hawser(resumed("run", "")).err;
  EXPECT_EQ(same.find("training has changed"), std::string::npos) << same;
  const std::string err = hawser(resumed("run", set("train.steps", "3") + set("optimizer.learning_rate", "1e-5"))).err;
  EXPECT_NE(err.find("\ntraining has changed: train.steps was 2 and is 3, optimizer.learning_rate was 0.0003 and "
                     "is 1e-05\n"),
            std::string::npos)
      << err;
}

// The batch size must be the checkpoint's: hints are other ranks or another micro-batch size, and they are right.
TEST_F(ResumeErrors, HintsKeepTheBatchSize) {
  ASSERT_NO_FATAL_FAILURE(train("run", "path: m"));
  const std::string at = " at train.global_batch_size, line 3; try ", first = "run.yaml: batch ";
  rejected(
      resumed("run", "--ranks 3"),
      {first + "does not divide over the ranks (expected a multiple of 3: 3 data ranks x micro_batch_size 1, got 4)" +
       at + "--ranks 2 or 4"});
  const std::string micro = set("train.micro_batch_size", "4") + "--ranks ";
  rejected(
      resumed("run", micro + "2"),
      {first + "does not divide over the ranks (expected a multiple of 8: 2 data ranks x micro_batch_size 4, got 4)" +
       at + "--ranks 1, or train.micro_batch_size: 2"});
  rejected(resumed("run", set("train.micro_batch_size", "3")),
           {first + "sizes do not divide (expected a multiple of train.micro_batch_size 3, got 4)" + at +
            "train.micro_batch_size: 2"});
  for (const char* hint : {"--ranks 2", "--ranks 4", "--set train.micro_batch_size=2 --ranks 2",
                           "--set train.micro_batch_size=4 --ranks 1"}) {
    EXPECT_EQ(hawser(resumed("run", hint)).code, 0) << hint;
  }

  const std::string other = set("train.global_batch_size", "7");
  for (const char* more : {"", "--ranks 2", "--set train.micro_batch_size=2"}) {
    rejected(resumed("run", other + more),
             {in("run") + "the checkpoint is from a run with another batch size (expected 4, got 7) at "
                          "train.global_batch_size, --set; try --set train.global_batch_size=4, or --set output=... "
                          "for a new run"});
  }
  // Without a checkpoint the batch size is free.
  rejected(
      resumed("run", "--ranks 3 " + set("output", "new")),
      {first + "does not divide over the ranks (expected a multiple of 3: 3 data ranks x micro_batch_size 1, got 4)" +
       at + "train.global_batch_size: 3 or 6"});
}

TEST_F(ResumeErrors, OneMistakeIsOneLine) {
  ASSERT_NO_FATAL_FAILURE(train("lora", "path: m", "adapter: {kind: lora, rank: 2, targets: [q_proj]}\n"));
  ASSERT_NO_FATAL_FAILURE(train("full", "path: m"));
  ASSERT_NO_FATAL_FAILURE(train("random", "config: m/config.json"));
  copy_of("gqa", "other");
  nlohmann::json config = testing::json_of(folder_ / "other/config.json");
  config["rms_norm_eps"] = 0.25;
  write("other/config.json", config.dump());
  nlohmann::json tokenizer = nlohmann::json::parse(testing::letters_tokenizer());
  tokenizer["version"] = "2";
  write("other/tokenizer.json", tokenizer.dump());
  const std::string weights = folder_.read("other/model.safetensors");
  write("other/model.safetensors", weights.substr(0, weights.size() - 1) + static_cast<char>(weights.back() ^ 1));

  const std::string model =
      "the model has changed: rms_norm_eps was 1e-05 and is 0.25 at model.path, --set; try the model";
  for (const char* run : {"lora", "full"})
    rejected(resumed(run, set("model.path", "other")), {in(run) + model + anew_});
  // The model's own settings again: its weights and its tokenizer are one change, too.
  fs::copy_file(folder_ / "m/config.json", folder_ / "other/config.json", fs::copy_options::overwrite_existing);
  const testing::Ran frozen = hawser(resumed("lora", set("model.path", "other")));
  EXPECT_EQ(testing::lines_of(frozen.err).size(), 1u) << frozen.err;
  EXPECT_NE(frozen.err.find("the frozen weights have changed"), std::string::npos) << frozen.err;
  EXPECT_NE(frozen.err.find(" at model.path, --set; try the base model" + anew_), std::string::npos) << frozen.err;
  rejected(resumed("full", set("model.path", "other")),
           {in("full") + "the tokenizer has changed: tokenizer.json has changed at model.path, --set; try --set "
                         "data.tokenizer=full/checkpoints/step-00000002, or --set output=... for a new run"});

  const auto adapter = [&](const std::string& run, const char* was, const char* is, const std::string& place) {
    return in(run) + "the adapter has changed (expected \"" + was + "\", got \"" + is + "\") at adapter.kind" + place +
           "; try the setting" + anew_;
  };
  for (const char* run : {"full", "random"})
    rejected(resumed(run, set("adapter.kind", "lora")), {adapter(run, "none", "lora", ", --set")});
  rejected(resumed("lora", set("adapter.kind", "none")), {adapter("lora", "lora", "none", ", --set")});
  rejected(resumed("lora", set("adapter.kind", "")), {adapter("lora", "lora", "none", "")});
  rejected(resumed("random", set("model.path", "other")),
           {"random.yaml: both model.path and model.config (expected one of the two) at model.config, line 1; try "
            "model.path to fine-tune, model.config to start from random weights"});
  // Mistakes of other keys are lines of their own.
  rejected(
      resumed("lora", set("adapter.rank", "4") + set("train.stepz", "1")),
      {"--set: unknown key at train.stepz; try train.steps",
       in("lora") + "the adapter has changed (expected 2, got 4) at adapter.rank, --set; try the setting" + anew_});
}

// Its conversations may change, as all text: also back to the tokenizer's own template.
TEST_F(ResumeErrors, AChatTemplateIsData) {
  write(
      "data.jsonl",
      "{\"messages\": [{\"role\": \"user\", \"content\": \"abc\"}, {\"role\": \"assistant\", \"content\": \"de\"}]}\n");
  write("m/tokenizer_config.json", "{\"eos_token\": \"~\"}");
  write("mine.jinja", "{% for m in messages %}<{{ m.content }}>{% endfor %}");
  write("other.jinja", "{% for m in messages %}({{ m.content }}){% endfor %}!");
  write("run.yaml",
        "model: {path: m}\ndata: {train: data.jsonl, sequence_length: 32}\ntrain: {steps: 1}\nrun: {threads: 1}\n"
        "output: run\n");
  ASSERT_EQ(hawser("fit run.yaml " + set("data.chat_template", "mine.jinja")).code, 0);
  const auto changes = [&](const std::string& options) {
    const testing::Ran ran = hawser(resumed("run", options));
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_NE(ran.err.find("hawser: the training data have changed: "), std::string::npos) << ran.err;
  };
  changes(set("train.steps", "2") + set("data.chat_template", "other.jinja"));
  const testing::Ran none = hawser(resumed("run", set("train.steps", "3")));
  EXPECT_EQ(none.code, 2);
  EXPECT_EQ(none.err.find("the tokenizer has changed"), std::string::npos) << none.err;
  EXPECT_NE(none.err.find("try data.chat_template"), std::string::npos) << none.err;
  write("m/chat_template.jinja", "{% for m in messages %}[{{ m.content }}]{% endfor %}!!");
  changes(set("train.steps", "3"));
  // From here on it is the tokenizer's.
  write("m/chat_template.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}!");
  rejected(resumed("run", set("train.steps", "4")),
           {in("run").replace(in("run").find("02"), 2, "03") +
            "the tokenizer has changed: chat_template.jinja has changed at model.path, line 1 of run.yaml; try --set "
            "data.tokenizer=run/checkpoints/step-00000003, or --set output=... for a new run"});
}

}  // namespace resume_errors_test
}  // namespace hawser
