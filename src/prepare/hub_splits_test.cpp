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
         "hub/data/test-00000-of-00001.jsonl", "hub/data/validation-00000-of-00001.jsonl", "hub/LICENSE.txt"});
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
  const PrepareOptions both{.train = {"hub"}, .validation = {"hub"}, .folder = folder_.path("")};
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

}  // namespace hub_splits_test
}  // namespace hawser::prepare
