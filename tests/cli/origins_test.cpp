// Problems of what a recipe or an option names: each line has the place that names it, and `recipe init` prints all.
#include "base/testing/test_paths.h"
#include "cli/testing/binary.h"

namespace hawser {
namespace origins_test {

class Origins : public testing::Binary {
 protected:
  void SetUp() override {
    Binary::SetUp();
    write("data.jsonl", testing::forty_documents());
  }
  static std::string model() { return testing::tiny("gqa").string(); }
};

TEST_F(Origins, LinesOfTheRecipe) {
  write("r.yaml",
        "model: {path: nope}\ndata:\n  sequence_length: 16\n  train: [data.jsonl, none.jsonl]\n  validation: gone.txt\n"
        "  tokenizer: no.json\n  chat_template: nope.jinja\ntrain: {steps: 1}\noutput: data.jsonl\n");
  const std::string no_model =
      "nope: no such model (expected a Hugging Face folder or a config.json) at model.path, line 1 of r.yaml";
  for (const char* command : {"plan", "prepare"}) {
    EXPECT_TRUE(hawser(std::string(command) + " r.yaml").err.starts_with("hawser: " + no_model + "\n")) << command;
  }
  write("named.sh", std::string(testing::kHawser) + " fit r.yaml 2>&1 | sed 's/ (expected a file, or one of .*)//'\n");
  EXPECT_EQ(
      shell("sh named.sh").out,
      "hawser: " + no_model + "\nhawser: none.jsonl: no such file at data.train[1], line 4 of r.yaml\n" +
          "hawser: gone.txt: no such file at data.validation[0], line 5 of r.yaml\nhawser: " + folder_.path("no.json") +
          ": cannot read the tokenizer: No such file or directory at data.tokenizer, line 6 of r.yaml\n"
          "hawser: nope.jinja: no such chat template at data.chat_template, line 7 of r.yaml\n"
          "hawser: data.jsonl: is a file, not a folder at output, line 9 of r.yaml; try another folder\n");
}

TEST_F(Origins, Options) {
  write("r.yaml", "model: {path: " + model() +
                      "}\ndata: {sequence_length: 16, train: data.jsonl}\ntrain: {steps: 1}\noutput: run\nmemory: "
                      "{capacity: 1TB}\n");
  write("text.txt", "words");
  write("broken.json", "{}");
  const std::string in = folder_.path("");
  rejected("fit r.yaml --set model.path=nope --set 'data.train=[a.txt,b.txt]' --set output=data.jsonl/run",
           {in + "nope: no such model (expected a Hugging Face folder or a config.json) at model.path, --set",
            in + "a.txt: no such file at data.train[0], --set", in + "b.txt: no such file at data.train[1], --set",
            in + "data.jsonl/run: the folder is not writable (got Not a directory) at output, --set"});
  rejected("fit r.yaml --set data.train=text.txt --set data.tokenizer=broken.json",
           {in + "broken.json: model not supported: null at model, named at data.tokenizer, --set"});
  for (const char* command : {"plan", "fit"}) {
    const std::string err = hawser(std::string(command) + " r.yaml --memory 1MB").err;
    EXPECT_NE(err.find(" MiB) at --memory\n"), std::string::npos) << err;
    const std::string set = hawser(std::string(command) + " r.yaml --set memory.capacity=1MB").err;
    EXPECT_NE(set.find(" MiB) at memory.capacity, --set\n"), std::string::npos) << set;
  }
}

// A tokenizer that is the model's own is named by the model.
TEST_F(Origins, TheModelsTokenizer) {
  copy_of("gqa", "m");
  write("words.txt", "some words");
  write("r.yaml", "model:\n  path: m\ndata: {sequence_length: 16, train: words.txt}\ntrain: {steps: 1}\noutput: run\n");
  write("m/tokenizer.json", "{}");
  rejected("fit r.yaml", {folder_.path("m/tokenizer.json") +
                          ": model not supported: null at model, named at model.path, line 2 of r.yaml"});
}

// `prepare` needs no model: no problem is of its place. A problem has one origin, also in a file with brackets.
TEST_F(Origins, WithoutAModel) {
  write("broken.json", "{}");
  write("words.txt", "some words");
  write("x[1]", "data: {sequence_length: 16, train: words.txt, tokenizer: broken.json}\noutput: run\n");
  rejected(
      "prepare x[1] --ranks 0",
      {"wrong value (expected a whole number of at least 1, got 0) at --ranks",
       folder_.path("broken.json") + ": model not supported: null at model, named at data.tokenizer, line 1 of x[1]"});
  write("x[1]", "model: {path: " + model() + "}\ndata: {sequence_length: 16, train: gone.jsonl}\noutput: run\n");
  rejected("prepare x[1]", {"gone.jsonl: no such file at data.train[0], line 2 of x[1]"});
}

TEST_F(Origins, RecipeInitReportsAllAtOnce) {
  write("taken.yaml", "");
  const std::string unknown = "--set: unknown key at train.stepz; try train.steps";
  const std::string rate =
      "--set: minimum learning rate above the peak (expected at most learning_rate 0.001, got 1) at "
      "optimizer.minimum_learning_rate";
  const std::string tokenizer =
      folder_.path("no.json") + ": cannot read the tokenizer: No such file or directory at data.tokenizer, --set";
  const std::string keys = " --set train.stepz=1 --set optimizer.minimum_learning_rate=1 --set data.tokenizer=no.json";
  rejected("recipe init --model nope --data none.jsonl --data data.jsonl --output taken.yaml --set output=/" + keys +
               " --set optimizer.learning_rate=0.001",
           {"taken.yaml: already exists; try another --output, or --force to overwrite it",
            "nope: no such model (expected a model folder or a config.json) at --model",
            "none.jsonl: no such file at --data", unknown,
            "--set: the root folder (expected a folder of its own, got /) at output; try output: runs/NAME", rate,
            tokenizer});
  // The learning rate that would be chosen, and the layout.
  rejected("recipe init --model " + model() +
               "/config.json --data data.jsonl --ranks 2 --set output= --set "
               "train.global_batch_size=3" +
               keys,
           {unknown, "--set: missing key at output; try output: runs/NAME", rate,
            "--set: batch does not divide over the ranks (expected a multiple of 2: 2 data ranks x micro_batch_size 1, "
            "got 3) at train.global_batch_size; try train.global_batch_size: 2 or 4",
            tokenizer});
  // What is chosen later is no problem: a batch for this micro-batch, steps for this warm-up.
  rejected(
      "recipe init --model " + model() +
          " --data data.jsonl --set train.micro_batch_size=2 --set optimizer.warmup_steps=2000 --set train.stepz=1",
      {unknown});
}

// `fit` rejects these folders.
TEST_F(Origins, RecipeInitRejectsOutputsThatFitRejects) {
  write("r.yaml", "model: {path: " + model() +
                      "}\ndata: {sequence_length: 16, train: data.jsonl}\ntrain: {steps: 1}\noutput: run\n");
  ASSERT_EQ(hawser("fit r.yaml").code, 0);
  const std::string inside = "run/checkpoints/step-00000001/again", path = folder_.path(inside);
  const std::string line =
      ": in a checkpoint, which is removed with all files in it when others replace it (expected a folder of its own) "
      "at ";
  rejected("fit r.yaml --set output=" + inside, {path + line + "output, --set"});
  const std::string init = "recipe init --model " + model() + " --data data.jsonl --output new.yaml --set ";
  for (const char* key : {"output", "data.prepared"}) {
    const testing::Ran ran = hawser(init + key + "=" + inside);
    EXPECT_EQ(ran.code, 2);
    EXPECT_EQ(testing::lines_of(ran.err).size(), 1u) << ran.err;
    EXPECT_NE(ran.err.find(inside + line + key + ", --set\n"), std::string::npos) << ran.err;
  }
  EXPECT_FALSE(testing::fs::exists(folder_ / "new.yaml"));
}

}  // namespace origins_test
}  // namespace hawser
