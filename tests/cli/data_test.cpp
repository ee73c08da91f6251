// Data on a recipe or command line: token files by prefix, text by its extension.
#include "base/testing/test_paths.h"
#include "cli/testing/binary.h"

namespace hawser {
namespace data_test {

namespace fs = std::filesystem;
using testing::tiny;

class Data : public testing::Binary {
 protected:
  void SetUp() override {
    Binary::SetUp();
    write("text.jsonl", testing::forty_documents());
    write("recipe.yaml", recipe("{train: text.jsonl, validation_fraction: 0.25, sequence_length: 24}", "run"));
  }
  static std::string recipe(const std::string& data, const std::string& output) {
    return "model: {config: " + (tiny("tied") / "config.json").string() + "}\ndata: " + data +
           "\ntrain: {steps: 3, global_batch_size: 4}\noptimizer: {learning_rate: 1.0e-2}\noutput: " + output + "\n";
  }
};

TEST_F(Data, ATokenFileTrainsAsTheTextItCameFrom) {
  const nlohmann::json from_text = json("fit recipe.yaml --json");
  fs::rename(folder_ / "run/data", folder_ / "tokens");
  write("tokens.yaml", recipe("{train: [tokens/train], validation: tokens/valid.bin, sequence_length: 24}", "again"));
  const nlohmann::json from_tokens = json("fit tokens.yaml --json");
  EXPECT_EQ(from_tokens["train_loss"], from_text["train_loss"]);
  EXPECT_EQ(from_tokens["validation_loss"], from_text["validation_loss"]);
  EXPECT_FALSE(fs::exists(folder_ / "again/data")) << "the files are read in place";
  const testing::Ran two = hawser("fit tokens.yaml --ranks 2 --json");
  EXPECT_EQ(two.code, 0) << two.err;

  const nlohmann::json prepared = json("prepare tokens.yaml --json");
  EXPECT_EQ(prepared["made_now"], false);
  EXPECT_EQ(prepared["train"]["documents"], 30);
  // Several are concatenated, and a share of them may be held out.
  write("both.yaml",
        recipe("{train: [tokens/train, tokens/valid], validation_fraction: 0.1, sequence_length: 24}", "both"));
  const nlohmann::json both = json("prepare both.yaml --json");
  EXPECT_EQ(both["train"]["documents"], 36);
  EXPECT_EQ(both["valid"]["documents"], 4);
}

TEST_F(Data, DocumentsOfOneTokenArePreparedAndCannotTrain) {
  write("ones.jsonl", "{\"input_ids\": [1]}\n{\"input_ids\": [2]}\n{\"input_ids\": [3]}\n");
  for (const std::string pack : {"documents", "chunks"}) {
    write(pack + ".yaml", recipe("{train: ones.jsonl, sequence_length: 8, pack: " + pack + "}", pack));
    const testing::Ran ran = hawser("prepare " + pack + ".yaml");
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_EQ(ran.out.find("packed   nothing: training needs a document of two tokens or more") != std::string::npos,
              pack == "documents")
        << ran.out;
  }
  const testing::Ran fit = hawser("fit documents.yaml");
  EXPECT_EQ(fit.code, 2) << fit.err;
  EXPECT_NE(fit.err.find("no document of two tokens or more"), std::string::npos) << fit.err;
}

TEST_F(Data, ValidationDataWithoutTargetsIsRejected) {
  std::string masked;
  for (int i = 0; i < 4; ++i) masked += "{\"input_ids\": [1, 2, 3], \"labels\": [-100, -100, -100]}\n";
  write("masked.jsonl", masked);
  for (const std::string pack : {"documents", "chunks"}) {
    const testing::Ran ran =
        hawser("fit recipe.yaml --set data.validation=masked.jsonl --set data.pack=" + pack + " --set output=" + pack);
    EXPECT_EQ(ran.code, 2) << ran.err;
    EXPECT_NE(ran.err.find("no token to predict in the validation data (expected documents of two tokens or more, and "
                           "labels that are not all -100)"),
              std::string::npos)
        << ran.err;
  }
}

// The loss printed by fit is the loss that eval reports on the same files.
TEST_F(Data, EvalOfACheckpointGivesTheNumberOfItsRun) {
  for (const std::string pack : {"documents", "chunks"}) {
    SCOPED_TRACE(pack);
    const nlohmann::json fit = json("fit recipe.yaml --json --set data.pack=" + pack + " --set output=" + pack);
    const double expected = fit["validation_loss"];
    const std::string eval = "eval --model " + pack + " --data " + pack + "/data/valid";
    const nlohmann::json got = json(eval);
    EXPECT_NEAR(got["loss"].get<double>(), expected, 1e-5);
    EXPECT_NEAR(json(eval + ".bin --ranks 2")["loss"].get<double>(), expected, 1e-5);
    EXPECT_EQ(json("eval --model " + fit["checkpoint"].get<std::string>() + " --data " + pack + "/data/valid.idx"),
              got);

    // An export has no recipe: the length is given, and documents are separate unless an option changes it.
    ASSERT_EQ(hawser("export " + pack + " " + pack + "-out").code, 0);
    const std::string exported = "eval --model " + pack + "-out --data " + pack +
                                 "/data/valid --sequence-length 24 --bigram " + pack + "/data/train";
    const nlohmann::json apart = json(exported), across = json(exported + " --across-documents");
    EXPECT_NEAR((pack == "chunks" ? across : apart)["loss"].get<double>(), expected, 1e-5);
    EXPECT_EQ((pack == "chunks" ? across : apart)["tokens"], got["tokens"]);
    EXPECT_NE(apart["loss"], across["loss"]);
    EXPECT_NE(apart["bigram_loss"], across["bigram_loss"]);
    rejected("eval --model " + pack + "-out --data " + pack + "/data/valid",
             {"eval: --sequence-length is missing; try hawser eval --help"});
  }
}

TEST_F(Data, ARunIsEvaluatedAndContinuesWithoutAnExport) {
  copy_of("tied", "model");
  write("model/tokenizer.json", testing::letters_tokenizer());
  write("words.jsonl", "{\"text\": \"to be or not to be\"}\n{\"text\": \"that is the question\"}\n");
  write("words.txt", "to be or not to be");
  write("tune.yaml",
        "model: {path: model}\ndata: {train: words.jsonl, sequence_length: 16}\ntrain: {steps: 2}\n"
        "precision: {compute: bfloat16}\noutput: tuned\n");
  ASSERT_EQ(hawser("fit tune.yaml").code, 0);
  ASSERT_EQ(hawser("export tuned out").code, 0);
  fs::remove_all(folder_ / "model");
  const std::string rest = " --data words.jsonl --sequence-length 32 --set precision.compute=float32";
  const nlohmann::json of_run = json("eval --model tuned" + rest);
  EXPECT_NEAR(of_run["loss"].get<double>(), json("eval --model out" + rest)["loss"].get<double>(), 2e-2);
  const nlohmann::json text = json("eval --model tuned --data words.txt");
  EXPECT_EQ(text["tokens"], 16) << "two pieces, of each of which the first token is not predicted";
  const testing::Ran words = hawser("generate --model tuned --prompt 'to be' --max-tokens 5");
  EXPECT_EQ(words.code, 0) << words.err;
  EXPECT_TRUE(words.out.starts_with("to be")) << words.out;
}

TEST_F(Data, UnreadableFilesAreReportedOnce) {
  copy_of("gqa", "model");
  write("model/tokenizer.json", "{\"version\"");
  write("words.txt", "to be");
  write("words.jsonl", "{\"text\": \"to be\"}\n");
  const std::string eval = "eval --model model --sequence-length 16 --data ";
  for (const char* file : {"words.txt", "words.jsonl"}) {
    rejected(eval + file, {"model/tokenizer.json: broken JSON at byte 10"});
  }
  EXPECT_EQ(json("eval --model model --sequence-length 64 --data " + (tiny("gqa") / "data.jsonl").string())["tokens"],
            testing::json_of(tiny("gqa") / "expected.json")["tokens"]);
  write("half.bin", "1234");
  const testing::Ran half = hawser(eval + "half.bin");
  EXPECT_EQ(half.code, 2);
  EXPECT_NE(half.err.find("half.bin.idx: cannot read"), std::string::npos) << half.err;
  write("wide.jsonl", "\xFF\xFE{");
  rejected(eval + "wide.jsonl", {"wide.jsonl: UTF-16 text (expected UTF-8); try iconv -f utf-16 -t utf-8"});
}

// The commands of the README on a small model.
TEST_F(Data, CommandsOfTheReadme) {
  copy_of("tied", "mine");
  write("mine/tokenizer.json", testing::letters_tokenizer());
  write("books/a.txt", "It was a truth universally acknowledged");
  write("books/b.txt", "that a single man in possession of a good fortune");
  const testing::Ran init = hawser(
      "recipe init --model mine --data books --set data.sequence_length=16 --set train.steps=2 "
      "--set train.global_batch_size=4 --set train.evaluate_batches=8 > recipe.yaml");
  ASSERT_EQ(init.code, 0) << init.err;
  for (const char* command :
       {"plan recipe.yaml --ranks 2", "fit recipe.yaml --ranks 2", "fit recipe.yaml --ranks 4 --resume",
        "export runs/mine-tuned models/mine", "eval --model runs/mine-tuned --data runs/mine-tuned/data/valid"}) {
    const testing::Ran ran = hawser(command);
    EXPECT_EQ(ran.code, 0) << command << "\n" << ran.err;
  }
}

// Reports all wrong paths at once and creates nothing.
TEST_F(Data, AllWrongPathsAtOnce) {
  write("wrong.yaml",
        "model: {config: nowhere.json}\ndata: {train: [none.jsonl, text.jsonl], validation: gone.txt, tokenizer: "
        "no.json, sequence_length: 24}\ntrain: {steps: 1, global_batch_size: 2}\noutput: made/not\n");
  const std::vector<std::string> lines = {
      "nowhere.json: no such model (expected a Hugging Face folder or a config.json) at model.config, line 1 of "
      "wrong.yaml",
      "none.jsonl: no such file at data.train[0], line 2 of wrong.yaml",
      "gone.txt: no such file at data.validation[0], line 2 of wrong.yaml",
      folder_.path("no.json") +
          ": cannot read the tokenizer: No such file or directory at data.tokenizer, line 2 of wrong.yaml"};
  rejected("fit wrong.yaml", lines);
  rejected("fit wrong.yaml --ranks 2", lines);
  rejected("prepare wrong.yaml", lines);
  EXPECT_FALSE(fs::exists(folder_ / "made"));
  const testing::Ran started =
      shell("OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun -q --oversubscribe -np 2 " +
            std::string(testing::kHawser) + " fit wrong.yaml");
  EXPECT_EQ(started.code, 2);
  EXPECT_EQ(testing::lines_of(started.err).size() >= 4, true) << started.err;
  EXPECT_FALSE(fs::exists(folder_ / "made"));
}

// Each rank reads the recipe itself, and it may be saved again while the ranks start.
TEST_F(Data, RanksWithDifferentRecipesOrModelsAreRejected) {
  const auto together = [&](const std::string& first, const std::string& second) {
    return shell("OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun -q --oversubscribe -np 1 " +
                 std::string(testing::kHawser) + " fit recipe.yaml " + first + " : -np 1 " +
                 std::string(testing::kHawser) + " fit recipe.yaml " + second);
  };
  const auto expect = [](const testing::Ran& ran, const std::string& line) {
    EXPECT_EQ(ran.code, 2) << ran.err;
    EXPECT_NE(ran.err.find(line), std::string::npos) << ran.err;
  };
  const std::string what = "ranks read different recipes: rank 1 has another value than rank 0 ";
  expect(together("--set optimizer.learning_rate=0.001", "--set optimizer.learning_rate=0.01"),
         what + "(expected 0.001, got 0.01) at optimizer.learning_rate; ");
  expect(together("", "--set parallel.context_parallel_degree=2"), what + "(expected 1, got 2)");
  auto config = testing::json_of(tiny("tied") / "config.json");
  config["rms_norm_eps"] = 0.001;
  write("other.json", config.dump());
  expect(together("", "--set model.config=" + folder_.path("other.json")),
         "ranks read different models: rank 1 has another config.json than rank 0");
}

// A document of one token more than a sequence is whole: its last token is a target only.
TEST_F(Data, InspectNamesThePiecesOfLongDocumentsOnly) {
  for (const auto& [tokens, piece] : {std::pair(24, false), std::pair(25, false), std::pair(26, true)}) {
    std::string ids = "7";
    for (int i = 1; i < tokens; ++i) ids += ", 7";
    write("text.jsonl", "{\"input_ids\": [" + ids + "]}\n");
    write("recipe.yaml", recipe("{train: text.jsonl, sequence_length: 24}", cat("run", tokens)));
    ASSERT_EQ(hawser("prepare recipe.yaml").code, 0);
    const testing::Ran shown = hawser("inspect data recipe.yaml");
    EXPECT_EQ(shown.code, 0) << shown.err;
    EXPECT_NE(shown.out.find("document 1 of 1, 24 tokens"), std::string::npos) << shown.out;
    EXPECT_EQ(shown.out.find(cat(": from token 0 of a document of ", tokens)) != std::string::npos, piece) << shown.out;
  }
}

TEST_F(Data, AListForAnotherNumberOfBlocksIsRejected) {
  const std::string list = " --set 'memory.activation_checkpointing=[40*full]'";
  const std::string line =
      "--set: list length differs from the number of blocks (expected 2, got 40) at memory.activation_checkpointing";
  rejected("plan recipe.yaml" + list, {line});
  rejected("fit recipe.yaml" + list, {line});
  EXPECT_EQ(hawser("plan recipe.yaml --set 'memory.activation_checkpointing=[full, none]'").code, 0);
}

TEST_F(Data, SequencesBeyondTheModelsPositionsAreWarnedOf) {
  const std::string config = (tiny("tied") / "config.json").string();
  const std::int64_t positions = testing::json_of(config)["max_position_embeddings"];
  const std::string longer = std::to_string(positions + 1);
  const std::string line = "hawser: warning: sequences of " + longer + " tokens exceed the model's " +
                           std::to_string(positions) +
                           " positions "
                           "(max_position_embeddings); rope_scaling in its config.json extends them\n";
  EXPECT_EQ(hawser("plan recipe.yaml --set data.sequence_length=" + longer).err, line);
  EXPECT_EQ(hawser("plan recipe.yaml --set data.sequence_length=" + std::to_string(positions)).err, "");
  const testing::Ran fit = hawser("fit recipe.yaml --ranks 2 --set train.steps=1 --set data.sequence_length=" + longer);
  EXPECT_EQ(fit.code, 0);
  EXPECT_NE(fit.err.find(line), std::string::npos) << fit.err;
  EXPECT_EQ(fit.err.find(line), fit.err.rfind(line)) << fit.err;
  std::string ids = "1";
  for (std::int64_t i = 1; i < positions; ++i) ids += ", 1";
  EXPECT_EQ(hawser("generate --model " + tiny("tied").string() + " --max-tokens 1 --prompt-ids '" + ids + "'").err,
            line);
  write("long.jsonl", "{\"input_ids\": [1, " + ids + "]}\n");
  EXPECT_EQ(
      hawser("eval --model " + tiny("tied").string() + " --data long.jsonl --ranks 2 --sequence-length 100000").err,
      line);
}

}  // namespace data_test
}  // namespace hawser
