// Named validation sets in prepare: a token file for each.
#include "prepare/validation_sets.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "base/testing/test_paths.h"
#include "prepare/prepare.h"
#include "prepare/testing/prepare_fixture.h"
#include "prepare/testing/prepare_rejection.h"
#include "prepare/token_file.h"

namespace hawser::prepare {
namespace validation_sets_test {

namespace fs = std::filesystem;
using Ids = std::vector<std::int32_t>;

class ValidationSets : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_.write("train.jsonl", lines(1, 200));
    folder_.write("a.jsonl", lines(1000, 3));
    folder_.write("b.jsonl", lines(2000, 100));
    folder_.write("c.jsonl", lines(3000, 2));
  }
  // Documents of two ids, the first of which count up.
  static std::string lines(int first, int count) {
    std::string out;
    for (int i = first; i < first + count; ++i) out += cat("{\"input_ids\": [", i, ", 7]}\n");
    return out;
  }
  PrepareOptions options(std::vector<ValidationSet> validation, const std::string& output = "out") {
    return {.train = {"train.jsonl"},
            .validation = std::move(validation),
            .folder = folder_.path(""),
            .output = folder_.path(output),
            .vocab_size = 4096,
            .block_bytes = 200};
  }
  // Novels before support, as a recipe's sets are.
  PrepareOptions two(const std::string& output = "out") {
    return options(
        {{.name = "novels", .patterns = {"c.jsonl"}}, {.name = "support", .patterns = {"a.jsonl", "b.jsonl"}}}, output);
  }
  Ids first_ids(const std::string& prefix) {
    const TokenFile file(folder_.path(prefix));
    Ids out;
    for (std::int64_t i = 0; i < file.documents(); ++i) {
      Ids id(1);
      file.read(file.begin(file.first_sequence(i)), id);
      out.push_back(id[0]);
    }
    return out;
  }
  std::map<std::string, std::string> files(const std::string& output) {
    std::map<std::string, std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(folder_.path(output))) {
      if (entry.path().filename() != "prepared.json") found[entry.path().filename()] = read_file(entry.path());
    }
    return found;
  }
  std::string rejection(const PrepareOptions& with) { return rejection_of(with, folder_); }
  TemporaryFolder folder_;
};

TEST_F(ValidationSets, EachHasATokenFile) {
  const PrepareOptions with = two();
  const Prepared prepared = prepare(with);
  EXPECT_EQ(prepared.train.documents, 200);
  EXPECT_EQ(prepared.validation.documents, 105) << "of both";
  EXPECT_EQ(first_ids("out/valid-novels"), (Ids{3000, 3001}));
  const Ids support = first_ids("out/valid-support");
  ASSERT_EQ(support.size(), 103u);
  EXPECT_EQ(support[0], 1000);
  EXPECT_EQ(support[3], 2000);
  EXPECT_FALSE(fs::exists(folder_.path("out/valid.idx")));
  EXPECT_TRUE(is_prepared(with));
  const TokenFiles found = token_files(with);
  ASSERT_EQ(found.validation.size(), 2u);
  EXPECT_EQ(found.validation[1].name, "support");
  EXPECT_EQ(found.validation[1].prefix, folder_.path("out/valid-support"));
  // The sets of a folder that is prepared already, without a recipe's sources.
  PrepareOptions only = with;
  only.train.clear();
  only.validation.clear();
  ASSERT_EQ(token_files(only).validation.size(), 2u);
  EXPECT_EQ(token_files(only).validation[0].name, "novels");
}

TEST_F(ValidationSets, OtherSetsReplaceThem) {
  prepare(two());
  const PrepareOptions renamed =
      options({{.name = "poems", .patterns = {"c.jsonl"}}, {.name = "support", .patterns = {"a.jsonl", "b.jsonl"}}});
  EXPECT_FALSE(is_prepared(renamed));
  prepare(renamed);
  EXPECT_TRUE(is_prepared(renamed));
  EXPECT_FALSE(fs::exists(folder_.path("out/valid-novels.idx")));
  EXPECT_FALSE(fs::exists(folder_.path("out/valid-novels.bin")));
  EXPECT_EQ(first_ids("out/valid-poems"), (Ids{3000, 3001}));
  fs::remove(folder_.path("out/valid-support.bin"));
  EXPECT_FALSE(is_prepared(renamed));
  const PrepareOptions one = options({{.patterns = {"c.jsonl"}}});
  prepare(one);
  EXPECT_TRUE(is_prepared(one));
  EXPECT_EQ(first_ids("out/valid"), (Ids{3000, 3001}));
  EXPECT_FALSE(fs::exists(folder_.path("out/valid-poems.idx")) || fs::exists(folder_.path("out/valid-support.idx")));
  folder_.write("out/valid-mine.bin", "of the user");
  prepare(two());
  EXPECT_FALSE(fs::exists(folder_.path("out/valid.idx")));
  EXPECT_TRUE(fs::exists(folder_.path("out/valid-mine.bin")));
  EXPECT_EQ(rejection(options({{.name = "mine", .patterns = {"c.jsonl"}}}, "other")), "accepted");
  folder_.write("third/valid-mine.bin", "of the user");
  EXPECT_EQ(
      rejection(options({{.name = "mine", .patterns = {"c.jsonl"}}}, "third")),
      "third/valid-mine.bin: the prepared data would replace this file, which `hawser prepare` did not write; try "
      "another data.prepared, or remove the file");
}

TEST_F(ValidationSets, AnInterruptedPrepareContinues) {
  prepare(two("whole"));
  PrepareOptions with = two();
  with.block_bytes = 50;
  int runs = 0;
  while (runs < 200 && stops_after(with, 16)) ++runs;  // some polls are of the files of the state
  EXPECT_GE(runs, 8) << "in the middle of each set";
  EXPECT_TRUE(is_prepared(with));
  EXPECT_TRUE(files("out") == files("whole"));
}

TEST_F(ValidationSets, TokenFilesOfAllAreReadInPlace) {
  prepare(two());
  PrepareOptions with = options(
      {{.name = "x", .patterns = {"out/valid-support"}}, {.name = "y", .patterns = {"out/valid-novels.bin"}}}, "other");
  with.train = {"out/train"};
  const TokenFiles found = token_files(with);
  EXPECT_TRUE(found.in_place);
  ASSERT_EQ(found.validation.size(), 2u);
  EXPECT_EQ(found.validation[0].prefix, folder_.path("out/valid-support"));
  EXPECT_EQ(found.validation[1].prefix, folder_.path("out/valid-novels"));
  EXPECT_EQ(prepare(with).validation.documents, 105);
  with.validation[1].patterns = {"c.jsonl"};
  EXPECT_FALSE(token_files(with).in_place);
  prepare(with);
  EXPECT_EQ(first_ids("other/valid-x").size(), 103u);
  EXPECT_EQ(first_ids("other/valid-y"), (Ids{3000, 3001}));
}

TEST_F(ValidationSets, RejectsFilesOfTwoSetsAndSetsWithoutText) {
  EXPECT_EQ(rejection(options(
                {{.name = "a", .patterns = {"a.jsonl", "gone.jsonl"}}, {.name = "b", .patterns = {"[ab].jsonl"}}})),
            "gone.jsonl: no such file at data.validation.a[1]\n"
            "a.jsonl: a file of two validation sets (expected a file of one set, got a and b) at data.validation.b");
  folder_.write("empty.jsonl", "{\"text\": \"\"}\n");
  folder_.write("blank.jsonl", "{\"text\": \"\"}\n\n");
  PrepareOptions empty = options({{.name = "a", .patterns = {"empty.jsonl"}},
                                  {.name = "b", .patterns = {"b.jsonl"}},
                                  {.name = "c", .patterns = {"blank.jsonl"}}});
  empty.tokenizer = cat(testing::kSourceFolder, "/recipes/quickstart-tokenizer/tokenizer.json");
  EXPECT_EQ(rejection(empty),
            "no tokens in any document at data.validation.a\nno tokens in any document at data.validation.c");
  EXPECT_FALSE(fs::exists(folder_.path("out/train.idx")));
}

}  // namespace validation_sets_test
}  // namespace hawser::prepare
