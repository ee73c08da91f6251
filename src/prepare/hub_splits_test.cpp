#include "prepare/hub_splits.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/testing/temporary_folder.h"
#include "prepare/prepare.h"
#include "prepare/sources.h"

namespace hawser::prepare {
namespace hub_splits_test {

namespace fs = std::filesystem;

TEST(HubSplits, NamesOfSplits) {
  const auto name = [](std::string_view path) -> std::string {
    const auto split = split_of(path);
    return split ? name_of(*split) : "none";
  };
  for (const char* path :
       {"train-00000-of-00002.parquet", "data/train-00000-of-00001-0123abcd.parquet", "train.jsonl",
        "my_train_file.csv", "train1.jsonl", "training.txt", "train/a.jsonl", "en/train/deep/a.txt",
        "train_sft-00000-of-00003.parquet", "eval_suite/train-00000-of-00001.parquet", "train/test.jsonl"}) {
    EXPECT_EQ(name(path), "train") << path;
  }
  for (const char* path :
       {"validation-00000-of-00001.parquet", "valid.jsonl", "dev.jsonl", "data/val_1.jsonl", "validation/a.txt"}) {
    EXPECT_EQ(name(path), "validation") << path;
  }
  for (const char* path : {"test.jsonl", "a/testing.jsonl", "eval.jsonl", "evaluation-00000-of-00001.parquet",
                           "test/part.parquet", "test_sft-00000-of-00001.parquet", "a test.txt"}) {
    EXPECT_EQ(name(path), "test") << path;
  }
  for (const char* path : {"a.jsonl", "trainfile.jsonl", "latest.jsonl", "tests/a.txt", "Test.txt", "contest.txt",
                           "default-00000-of-00001.parquet", "developers.txt", "books/Emma.txt"}) {
    EXPECT_EQ(name(path), "none") << path;
  }
}

class SplitFolders : public ::testing::Test {
 protected:
  void write(const std::vector<std::string>& names) {
    for (const std::string& name : names) folder_.write(name, "{\"text\": \"a\"}\n");
  }
  std::string shortened(std::string text) {
    for (const std::string& folder : {folder_.path("hub/"), folder_.path("")}) {
      for (std::size_t at; (at = text.find(folder)) != text.npos;) text.erase(at, folder.size());
    }
    return text;
  }
  // What a pattern reads, and its problems.
  std::string found(const std::string& pattern, Split split = Split::train) {
    Problems problems;
    std::string out;
    for (const Source& source : find_sources({pattern}, folder_.path(""), "data.train", problems, split)) {
      out += source.path + " ";
    }
    return shortened(out + problems.lines());
  }
  TemporaryFolder folder_;
};

TEST_F(SplitFolders, TestAndValidationAreNeverTrainedOn) {
  write({"hub/data/train-00000-of-00002.jsonl", "hub/data/train-00001-of-00002.jsonl",
         "hub/data/test-00000-of-00001.jsonl", "hub/data/validation-00000-of-00001.jsonl", "hub/notes.txt"});
  EXPECT_EQ(found("hub"), "data/train-00000-of-00002.jsonl data/train-00001-of-00002.jsonl ");
  EXPECT_EQ(found("hub/**"), found("hub"));
  EXPECT_EQ(found("hub", Split::validation), "data/validation-00000-of-00001.jsonl ");
  EXPECT_EQ(found("hub/data/test-*"), "data/test-00000-of-00001.jsonl ") << "named";
  const PrepareOptions options{.train = {"hub"}, .folder = folder_.path("")};
  const std::string hub = folder_.path("hub");
  EXPECT_EQ(source_notes(options),
            (std::vector<std::string>{hub +
                                      ": data.train takes the train split and leaves out other (1 file), test (1 "
                                      "file) and validation (1 file); data.validation: [" +
                                      hub + "] evaluates on the validation split"}));
  const PrepareOptions both{.train = {"hub"}, .validation = {{.patterns = {"hub"}}}, .folder = folder_.path("")};
  EXPECT_EQ(source_notes(both),
            (std::vector<std::string>{hub + ": data.train takes the train split and leaves out other (1 file), test (1 "
                                            "file) and validation (1 file)"}));
}

TEST_F(SplitFolders, WithoutATrainSplitTheFilesOfNoSplitAreRead) {
  write({"hub/a.jsonl", "hub/b.jsonl", "hub/test.jsonl"});
  EXPECT_EQ(found("hub"), "a.jsonl b.jsonl ");
  EXPECT_EQ(found("hub", Split::validation),
            "hub: folder without files of the validation split (got other (2 files) and test (1 file)) at "
            "data.train[0]; try the names of the files, if they are the data");
  write({"only/test.jsonl", "only/dev/x.jsonl", "plain/x.jsonl"});
  EXPECT_EQ(found("only"),
            "only: folder without files of the train split (got test (1 file) and validation (1 file)) at "
            "data.train[0]; try the names of the files, if they are the data");
  EXPECT_EQ(found("only/dev"), "only/dev/x.jsonl ") << "the name of the folder itself is no split";
  EXPECT_EQ(found("plain", Split::validation), "plain/x.jsonl ");
}

TEST_F(SplitFolders, OneOfSeveralDataSetsIsAskedFor) {
  write({"hub/en/train.jsonl", "hub/en/test.jsonl", "hub/fr/train/a.jsonl", "hub/fr/train/b/c.jsonl"});
  EXPECT_EQ(
      found("hub"),
      "hub: folder with several data sets (expected one, or a list of them, got en, fr) at data.train[0]; try fr");
  EXPECT_EQ(found("hub/fr"), "fr/train/a.jsonl fr/train/b/c.jsonl ");
  EXPECT_EQ(found("hub", Split::validation).find("folder without files of the validation split") != std::string::npos,
            true);
  write({"chat/data/train_sft-00000-of-00001.jsonl", "chat/data/train_gen-00000-of-00002.jsonl",
         "chat/data/test_sft-00000-of-00001.jsonl", "one/data/train_sft-00000-of-00001.jsonl"});
  EXPECT_EQ(found("chat"),
            "chat: folder with several data sets (expected one, or a list of them, got data/train_gen, data/train_sft) "
            "at data.train[0]; try chat/data/train_sft-*");
  EXPECT_EQ(found("chat/data/train_sft-*"), "chat/data/train_sft-00000-of-00001.jsonl ");
  EXPECT_EQ(found("one"), "one/data/train_sft-00000-of-00001.jsonl ");
}

// Tables and arrays are read of a folder that has nothing else, with the same splits.
TEST_F(SplitFolders, TablesAndArraysAreReadIfThereIsNothingElse) {
  for (const char* name : {"csv/train.csv", "csv/test.csv"}) folder_.write(name, "text\na\n");
  for (const char* name : {"csv/README.md", "csv/LICENSE.txt", "csv/requirements.txt", "csv/dataset_infos.json",
                           "csv/data/prepared.json"}) {
    folder_.write(name, "license: mit");
  }
  EXPECT_EQ(found("csv"), "csv/train.csv ");
  EXPECT_EQ(source_notes({.train = {"csv"}, .folder = folder_.path("")}),
            (std::vector<std::string>{folder_.path("csv") +
                                      ": data.train takes the train split and leaves out test (1 file)"}));
  folder_.write("csv/stats.json", "[]");
  EXPECT_EQ(found("csv"), "csv/train.csv ") << "arrays only without tables";
  EXPECT_EQ(source_notes({.train = {"csv"}, .folder = folder_.path("")}).size(), 2U);
  write({"json/en/c4-train.00000-of-00002.json", "json/en/c4-validation.00000-of-00001.json", "json/README.md"});
  EXPECT_EQ(found("json"), "json/en/c4-train.00000-of-00002.json ");
  EXPECT_EQ(found("json", Split::validation), "json/en/c4-validation.00000-of-00001.json ");
  folder_.write("tsv/a.tsv", "text\na\n");
  EXPECT_EQ(found("tsv"), "tsv/a.tsv ");
  // Files about a data set are no data, and no advice makes them data.
  write({"both/LICENSE", "both/LICENSE-MIT.txt", "both/data.jsonl", "both/license_texts.jsonl"});
  EXPECT_EQ(found("both"), "both/data.jsonl both/license_texts.jsonl ");
  write({"card/README.md", "card/LICENSE.txt", "card/dataset_info.json"});
  EXPECT_EQ(found("card"), "card: folder without .jsonl, .parquet, .txt, .csv, .tsv or .json files at data.train[0]");
  write({"card/train.jsonl.bz2"});
  EXPECT_EQ(found("card"),
            "card: folder without .jsonl, .parquet, .txt, .csv, .tsv or .json files (got train.jsonl.bz2) at "
            "data.train[0]; try bunzip2 -k \"card/train.jsonl.bz2\"");
  EXPECT_EQ(found("card/LICENSE.txt"), "card/LICENSE.txt ") << "named";
}

// The header of README.md says what the data are, as for `datasets`.
TEST_F(SplitFolders, ConfigsOfTheReadmeAreRead) {
  const auto declare = [&](const std::string& folder, const std::string& configs) {
    folder_.write(folder + "/README.md", "---\nlicense: mit\nconfigs:\n" + configs + "tags:\n- {x: 1\n---\n# Card\n");
  };
  write({"hub/a/part-0.jsonl", "hub/b/part-0.jsonl", "hub/x.jsonl", "hub/LICENSE.txt", "outside.jsonl"});
  declare("hub",
          "- config_name: default\n  data_files:\n  - split: train\n    path: a/*.jsonl\n  - split: test\n    path:\n"
          "    - b/*.jsonl\n");
  EXPECT_EQ(found("hub"), "a/part-0.jsonl ");
  EXPECT_EQ(
      found("hub", Split::validation),
      "hub: folder without files of the validation split (got test (1 file) and train (1 file)) at data.train[0]; "
      "try the names of the files, if they are the data");
  EXPECT_EQ(source_notes({.train = {"hub"}, .folder = folder_.path("")}),
            (std::vector<std::string>{folder_.path("hub") +
                                      ": data.train takes the train split and leaves out test (1 file)"}));
  declare("hub", "- config_name: one\n  data_files: [x.jsonl, 'b/**', ../outside.jsonl]\n");
  EXPECT_EQ(found("hub"), "x.jsonl b/part-0.jsonl ");
  declare("hub", "  - config_name: one\n    data_files: {train: b/part-0.jsonl, validation: \"a/*\"}\n");
  EXPECT_EQ(found("hub"), "b/part-0.jsonl ");
  EXPECT_EQ(found("hub", Split::validation), "a/part-0.jsonl ");
  declare("hub", "- data_dir: a\n");
  EXPECT_EQ(found("hub"), "a/part-0.jsonl ");
  declare("hub", "- data_files: gone/*.jsonl\n");
  EXPECT_EQ(found("hub"),
            "README.md: configs of a data set without their files (expected gone/*.jsonl) at data.train[0]; try a "
            "complete download, or the names of the files that are the data");
  // Of several, the default one, as for `datasets`; else one must be named.
  const std::string two = "- config_name: b\n  data_files: b/*\n- config_name: a\n  data_files: a/*.jsonl\n";
  declare("hub", two);
  EXPECT_EQ(
      found("hub"),
      "hub: folder with several data sets (expected one, or a list of them, got b, a) at data.train[0]; try a/*.jsonl");
  EXPECT_EQ(found("hub/a/*.jsonl"), "a/part-0.jsonl ");
  declare("hub", two + "  default: true\n");
  EXPECT_EQ(found("hub"), "a/part-0.jsonl ");
  EXPECT_EQ(source_notes({.train = {"hub"}, .folder = folder_.path("")}),
            (std::vector<std::string>{folder_.path("hub") +
                                      ": data.train takes the train split and leaves out config b (1 file)"}));
  // HuggingFaceH4/ultrachat_200k.
  declare("hub",
          "- config_name: default\n  data_files:\n  - split: train_sft\n    path: a/*\n  - split: train_gen\n    path: "
          "b/*\n");
  EXPECT_EQ(found("hub"),
            "hub: folder with several data sets (expected one, or a list of them, got train_gen, train_sft) at "
            "data.train[0]; try a/*");
  // Without configs that can be read, the names count.
  for (const char* configs : {"- {config_name: [\n", "- config_name: one\n", "[]\n", "x: 1\n"}) {
    declare("hub", configs);
    EXPECT_EQ(found("hub"), "a/part-0.jsonl b/part-0.jsonl x.jsonl ") << configs;
  }
}

}  // namespace hub_splits_test
}  // namespace hawser::prepare
