// Each turn of a chat against its complete conversation as one prompt, without a KV cache of earlier turns.
#include "generate/chat.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/testing/temporary_folder.h"
#include "base/testing/test_paths.h"

namespace hawser::generate {
namespace chat_test {

namespace fs = std::filesystem;

// A tokenizer with a token for each printable character.
std::string tokenizer_of_letters() {
  nlohmann::json vocabulary = nlohmann::json::object();
  for (int c = '!'; c <= '~'; ++c) vocabulary[std::string(1, static_cast<char>(c))] = c - '!';
  vocabulary["\u0120"] = '~' - '!' + 1;
  const nlohmann::json byte_level{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  return nlohmann::json{{"added_tokens", nlohmann::json::array()},
                        {"pre_tokenizer", byte_level},
                        {"decoder", byte_level},
                        {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", nlohmann::json::array()}}}}
      .dump();
}

class Chats : public ::testing::Test {
 protected:
  Chats() {
    fs::copy(fs::path(testing::kSourceFolder) / "tests/golden/tiny/gqa", folder_.path("model"));
    folder_.write("model/tokenizer.json", tokenizer_of_letters());
  }

  OpenGeneration open(const std::string& chat_template) {
    Problems problems;
    auto input = open_generation({.model = folder_.path("model"),
                                  .chat = true,
                                  .chat_template = folder_.write("t.jinja", chat_template),
                                  .max_tokens = 3,
                                  .context = 120},
                                 problems);
    HAWSER_CHECK(input.has_value(), problems.lines());
    return *std::move(input);
  }

  TemporaryFolder folder_;
};

// Writes whole answers, and the beginnings of all answers but the last one.
const std::string kWhole =
    "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}{% if add_generation_prompt %}a{% endif %}";
const std::string kShortened =
    "{% for m in messages %}{{ m.role[0] }}{% if m.role == 'assistant' and loop.index0 < 2 %}{{ m.content[:1] }}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}a{% endif %}";

// The keys and values that a turn reuses are those of its own prompt: its logits show it, a greedy token rarely does.
TEST_F(Chats, LogitsOfATurnAreThoseOfItsCompleteConversation) {
  for (const std::string& chat_template : {kWhole, kShortened}) {
    SCOPED_TRACE(chat_template);
    OpenGeneration input = open(chat_template), other = open(chat_template);
    Generator generator(input), reference(other);
    Chat chat(input, generator, "");
    text::chat::List messages;
    bool all_reused = false;
    std::vector<std::int32_t> cached;  // tokens in the KV cache: all but the last one of an answer
    for (const std::string line : {"to be", "or not", "that is", "/reset", "to do", "or"}) {
      if (line == "/reset") {
        chat.reset();
        messages.clear();
        continue;
      }
      SCOPED_TRACE(line);
      messages.push_back(message("user", line));
      Problems problems;
      const auto answer = chat.send(
          line, [](const std::string&) {}, problems);
      ASSERT_TRUE(answer.has_value()) << problems.lines();
      const auto prompt = other.encoder->conversation({.messages = messages}, {}, problems);
      ASSERT_TRUE(prompt.has_value()) << problems.lines();
      EXPECT_EQ(chat.prompt_tokens(), prompt->ids.size());
      const auto common = std::mismatch(prompt->ids.begin(), prompt->ids.end(), cached.begin(), cached.end()).first;
      EXPECT_EQ(chat.reused_tokens(), static_cast<std::size_t>(common - prompt->ids.begin()));
      EXPECT_EQ(chat.reused_tokens() > 0, !cached.empty());
      all_reused = all_reused || chat.reused_tokens() == cached.size();
      const Answer expected = reference.answer(*prompt, 0, 0);
      EXPECT_EQ(answer->ids, expected.ids);
      const auto logits = generator.decoder().logits(0), wanted = reference.decoder().logits(0);
      double largest = 0, distance = 0;
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        largest = std::max(largest, std::abs(double{wanted[i]}));
        distance = std::max(distance, std::abs(double{logits[i]} - double{wanted[i]}));
      }
      EXPECT_LT(distance, 5e-6 * largest);
      messages.push_back(message("assistant", answer->text));
      cached = prompt->ids;
      cached.insert(cached.end(), answer->ids.begin(), answer->ids.end() - 1);
    }
    if (chat_template == kWhole) {
      EXPECT_TRUE(all_reused);
    }
  }
}

// A turn that ends with an exception leaves rows of its own prompt in the KV cache.
TEST_F(Chats, ATurnAfterAnInterruptedOneReusesNothingOfIt) {
  OpenGeneration input = open(kWhole);
  Generator generator(input);
  Chat chat(input, generator, "");
  Problems problems;
  ASSERT_TRUE(chat.send(
                      "to be", [](const std::string&) {}, problems)
                  .has_value());
  EXPECT_THROW(chat.send(
                   "or not", [](const std::string&) { throw std::runtime_error("stop"); }, problems),
               std::runtime_error);
  ASSERT_TRUE(chat.send(
                      "that", [](const std::string&) {}, problems)
                  .has_value());
  EXPECT_EQ(chat.reused_tokens(), 0u);
}

}  // namespace chat_test
}  // namespace hawser::generate
