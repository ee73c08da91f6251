// Greedy tokens of the tiny models against transformers' generate, alone and in batches (tests/golden/README.md).
#include "generate/generate.h"
#include "base/testing/test_paths.h"

#include <gtest/gtest.h>

#include "golden.h"

namespace hawser {
namespace generate_test {

namespace fs = std::filesystem;

const nlohmann::json& golden() {
  static const nlohmann::json json =
      testing::read_json(fs::path(testing::kSourceFolder) / "tests/golden/generations.json");
  return json;
}

std::vector<std::string> cases() {
  std::vector<std::string> names;
  for (const auto& [name, entries] : golden()["tiny"].items()) names.push_back(name);
  return names;
}

class Generations : public ::testing::TestWithParam<std::string> {
 protected:
  // Checks the answers to all prompts of the case, in the order `order`, `sequences` at once.
  static void check(std::int64_t sequences, const std::vector<std::size_t>& order) {
    const nlohmann::json& entries = golden()["tiny"][GetParam()];
    Problems problems;
    auto input = generate::open_generation(
        {.model = (fs::path(testing::kSourceFolder) / "tests/golden/tiny" / GetParam()).string(),
         .prompt_ids = {1},
         .max_tokens = golden()["new_tokens"]},
        problems);
    ASSERT_TRUE(problems.empty()) << problems.lines();
    input->ends.clear();
    input->prompts.clear();
    for (const std::size_t i : order) {
      input->prompts.push_back({.ids = entries[i]["prompt_ids"].get<std::vector<std::int32_t>>()});
    }
    input->size = {.sequences = sequences, .positions = 64};
    generate::Generator generator(*input);
    const std::vector<generate::Answer> answers = generator.answer_all();
    ASSERT_EQ(answers.size(), order.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      EXPECT_EQ(answers[i].ids, entries[order[i]]["ids"].get<std::vector<std::int32_t>>()) << i;
      EXPECT_EQ(answers[i].end, generate::Answer::End::length);
    }
    const auto prompts = static_cast<std::int64_t>(order.size());
    EXPECT_EQ(generator.counts().prompts, prompts);
    EXPECT_EQ(generator.counts().decode_tokens, prompts * (input->max_tokens - 1));
  }
};

TEST_P(Generations, OneByOne) {
  check(1, {0, 1, 2});
}

TEST_P(Generations, Batched) {
  check(3, {0, 1, 2});
  check(5, {2, 1, 0, 0, 2});
}

TEST_P(Generations, MorePromptsThanSequences) {
  check(2, {2, 0, 1, 1, 0, 2, 2});
}

INSTANTIATE_TEST_SUITE_P(Tiny, Generations, ::testing::ValuesIn(cases()),
                         [](const auto& param) { return param.param; });

}  // namespace generate_test
}  // namespace hawser
