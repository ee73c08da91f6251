#include "text/tokenizers/word_model.h"

#include <gtest/gtest.h>

#include <random>

namespace hawser::text {
namespace word_model_test {

// One id per three bytes: the ids of some words fit a cache entry, others do not. Each id contains its bytes.
struct ByThrees final : WordModel {
  void encode(std::string_view word, std::vector<std::int32_t>& ids) const override {
    ++asked;
    for (std::size_t at = 0; at < word.size(); at += 3) {
      std::int32_t id = 0;
      for (const char c : word.substr(at, 3)) id = id * 256 + static_cast<unsigned char>(c);
      ids.push_back(id);
    }
  }
  mutable int asked = 0;
};

TEST(WordCache, ReturnsTheIdsOfTheModel) {
  const ByThrees model;
  WordCache cache;
  std::mt19937 dice(3);
  std::vector<std::string> words;
  // More words than the cache holds, of all lengths, some of them prefixes of others.
  for (int i = 0; i < 150000; ++i) {
    std::string word;
    for (std::size_t length = 1 + dice() % 40; word.size() < length;) word += static_cast<char>('a' + dice() % 26);
    words.push_back(std::move(word));
    if (i % 3 == 0) words.push_back(words[dice() % words.size()].substr(0, 1 + dice() % 12));
  }
  words.push_back(std::string(9, '\0'));
  words.push_back(std::string(15, '\0'));
  for (int pass = 0; pass < 2; ++pass) {
    for (const std::string& word : words) {
      std::vector<std::int32_t> ids, expected;
      model.encode(word, expected);
      {
        IdSink sink(ids);
        cache.encode(word, word.data() + word.size(), model, sink);
      }
      ASSERT_EQ(ids, expected) << word;
    }
  }
}

TEST(WordCache, HoldsTwoWordsPerLine) {
  const ByThrees model;
  WordCache cache;
  std::vector<std::string> words;
  for (int i = 0; i < 20000; ++i) words.push_back("w" + std::to_string(i));
  std::vector<std::int32_t> ids;
  IdSink sink(ids);
  for (int pass = 0; pass < 2; ++pass) {
    model.asked = 0;
    for (const std::string& word : words) cache.encode(word, word.data() + word.size(), model, sink);
  }
  // 20,000 words in 32,768 lines: by the Poisson distribution, one in eight shares its line with at least two others.
  // With one word per line, nearly half would be evicted.
  EXPECT_LT(model.asked, 3500);
}

}  // namespace word_model_test
}  // namespace hawser::text
