#include "train/turns.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/testing/temporary_folder.h"
#include "base/testing/test_paths.h"

namespace hawser::train {
namespace turns_test {

class Turns : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string path = testing::kSourceFolder + std::string("/recipes/quickstart-tokenizer/tokenizer.json");
    auto json = nlohmann::json::parse(read_file(path));
    auto added = json["added_tokens"][0];
    added["id"] = kEnd;
    added["content"] = "<|im_end|>";
    json["added_tokens"].push_back(added);
    tokenizer_ = folder_.write("tokenizer.json", json.dump());
  }
  // A file of `count` tokens 5, with `last` as the last.
  prepare::TokenFile file(std::int64_t count, std::int32_t last, bool labels) {
    const std::string prefix = folder_.path(cat("data-", files_++));
    prepare::TokenFileWriter writer(prefix, 5000);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(count), 5);
    ids.back() = last;
    writer.add_sequence(ids, labels ? ids : std::vector<std::int32_t>());
    writer.end_document();
    writer.finish();
    return prepare::TokenFile(prefix);
  }
  prepare::PrepareOptions options(const std::string& chat_template) const {
    return {.tokenizer = tokenizer_, .chat_template = chat_template};
  }

  static constexpr std::int32_t kEnd = 4096;

  TemporaryFolder folder_;
  std::string tokenizer_;
  int files_ = 0;
};

TEST_F(Turns, AreFoundByTheEndOfTurn) {
  EXPECT_EQ(has_turns(file(10, kEnd, true), options("chatml")), true);
  EXPECT_EQ(has_turns(file(10, kEnd, false), options("chatml")), true);
  EXPECT_EQ(has_turns(file(10, 5, true), options("chatml")), false);
  EXPECT_EQ(has_turns(file(kPieceTokens + 10, kEnd, true), options("chatml")), true);
  EXPECT_EQ(has_turns(file(10, kEnd, true), {.chat_template = "chatml"}), std::nullopt);
  // Every text ends with it.
  folder_.write("tokenizer_config.json", R"({"eos_token": "<|im_end|>"})");
  EXPECT_EQ(has_turns(file(10, kEnd, false), options("chatml")), false);
  EXPECT_EQ(has_turns(file(10, kEnd, true), options("chatml")), true);
}

TEST_F(Turns, OfATemplateWithoutTokensAreThoseOfFilesWithLabels) {
  folder_.write("plain.jinja", "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}");
  const prepare::PrepareOptions plain = options(folder_.path("plain.jinja"));
  EXPECT_EQ(has_turns(file(10, 5, true), plain), true);
  EXPECT_EQ(has_turns(file(10, 5, false), plain), false);
  folder_.write("broken.jinja", "{% for %}");
  EXPECT_EQ(has_turns(file(10, 5, true), options(folder_.path("broken.jinja"))), std::nullopt);
}

}  // namespace turns_test
}  // namespace hawser::train
