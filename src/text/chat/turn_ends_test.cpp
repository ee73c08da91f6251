#include "text/chat/turn_ends.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/testing/temporary_folder.h"
#include "base/testing/test_paths.h"

namespace hawser::text::chat {
namespace turn_ends_test {

class TurnEnds : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string path = testing::kSourceFolder + std::string("/recipes/quickstart-tokenizer/tokenizer.json");
    auto json = nlohmann::json::parse(read_file(path));
    for (const char* token : {"<|im_start|>", "<|im_end|>", "<|end|>", "<|body|>", "</s>", "<s>"}) {
      auto added = json["added_tokens"][0];
      added["id"] = 4095 + json["added_tokens"].size();
      added["content"] = token;
      json["added_tokens"].push_back(added);
    }
    tokenizer_ = load_tokenizer(folder_.write("tokenizer.json", json.dump()));
  }

  // The tokens of a template that writes these texts around each message's contents; `last` after all of them.
  std::vector<std::string> ends(const std::string& user, const std::string& assistant, const std::string& last = "",
                                const std::string& eos = "<|endoftext|>") {
    const ChatTemplate with("{% for m in messages %}{% if m.role == 'user' %}" + user + "{% else %}" + assistant +
                                "{% endif %}{% endfor %}" + last,
                            {{"eos_token", eos}}, "test");
    std::vector<std::string> out;
    for (const std::int32_t id : turn_ends(with, *tokenizer_)) out.push_back(tokenizer_->decode_bytes({&id, 1}));
    return out;
  }

  TemporaryFolder folder_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

using Texts = std::vector<std::string>;

TEST_F(TurnEnds, FollowTheMessageOfTheAssistant) {
  const std::string user = "<|im_start|>user\n{{ m.content }}<|im_end|>\n";
  EXPECT_EQ(ends(user, "<|im_start|>assistant\n{{ m.content }}<|im_end|>\n"), Texts({"<|im_end|>"}));
  EXPECT_EQ(ends(user, "{{ m.content }}\n<|im_end|>\n"), Texts({"<|im_end|>"}));
  EXPECT_EQ(ends(user, "{{ m.content }}<|body|><|im_end|>\n"), Texts({"<|body|>", "<|im_end|>"}));
  // The last message is followed by more than the others.
  EXPECT_EQ(ends("<|im_start|>{{ m.content }}", "{{ m.content }}<|end|>", "<|endoftext|>"), Texts({"<|end|>"}));
  EXPECT_EQ(ends(user, "{{ m.content }}<|end|>\n", "<|endoftext|>"), Texts({"<|end|>"}));
  EXPECT_EQ(ends("<s>{{ m.content }}", " {{ m.content }} </s>"), Texts({"</s>"}));
  EXPECT_EQ(ends(user, "{{ m.content }}<|im_end|>\n", "<|im_start|>assistant\n"), Texts({"<|im_end|>"}));
  // Only the last message is followed by a token.
  EXPECT_EQ(ends("{{ m.content }}\n", "{{ m.content }}\n", "<|end|><|endoftext|>"), Texts({"<|end|>"}));
}

TEST_F(TurnEnds, MayBeTheEosTokenOrNone) {
  EXPECT_EQ(ends("{{ m.content }}\n", "{{ m.content }}{{ eos_token }}\n", "", "!"), Texts({"!"}));
  EXPECT_EQ(ends("{{ m.content }}\n", "{{ m.content }}\n{{ eos_token }}", "", "!"), Texts({"!"}));
  EXPECT_EQ(ends("{{ m.content }}\n", "{{ m.content }}\n"), Texts()) << "it does not write the eos_token";
  EXPECT_EQ(ends("{{ m.content }}\n", "{{ m.content }}### End", "", "### End"), Texts()) << "several tokens";
  const std::string rejects = "{{ raise_exception('no') }}";
  EXPECT_EQ(ends(rejects, "{{ m.content }}"), Texts({"<|endoftext|>"}));
  EXPECT_EQ(ends(rejects, "{{ m.content }}", "", "### End"), Texts());
}

// Built-in templates with the tokens of their models.
TEST_F(TurnEnds, OfBuiltInTemplates) {
  for (const NamedTemplate& one : named_templates()) {
    const ChatTemplate with(one.source, one.tokens, one.name);
    const auto ids = turn_ends(with, *tokenizer_);
    if (one.name == std::string("chatml") || one.name == std::string("qwen-2.5")) {
      ASSERT_EQ(ids.size(), 1u) << one.name;
      EXPECT_EQ(ids.front(), tokenizer_->id_of("<|im_end|>")) << one.name;
    }
    if (one.name == std::string("mistral-v3") || one.name == std::string("llama-2")) {
      ASSERT_EQ(ids.size(), 1u) << one.name;
      EXPECT_EQ(ids.front(), tokenizer_->id_of("</s>")) << one.name;
    }
    if (one.name == std::string("llama-3")) EXPECT_TRUE(ids.empty()) << "the tokenizer has no <|eot_id|>";
  }
}

}  // namespace turn_ends_test
}  // namespace hawser::text::chat
