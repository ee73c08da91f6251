// A real model, SmolLM2-135M, against transformers in float64 (tests/golden/README.md).
#include "real_model.h"

namespace hawser {
namespace smollm2_test {

class SmolLM2 : public testing::RealModelTest {
 protected:
  SmolLM2() : RealModelTest("smollm2") {}
};

TEST_F(SmolLM2, LossAndGradientsEqualTransformers) {
  expect_loss_and_gradients();
}

TEST_F(SmolLM2, GreedyTextEqualsTransformers) {
  expect_greedy_text();
}

// Batched, with more prompts than sequences.
TEST_F(SmolLM2, GreedyTextOfABatchEqualsTransformers) {
  Problems problems;
  auto input = generate::open_generation(
      {.model = model_.string(), .prompt = "", .max_tokens = 32, .threads = threads_}, problems);
  ASSERT_TRUE(problems.empty()) << problems.lines();
  input->prompts.clear();
  std::vector<std::vector<std::int32_t>> expected;
  for (int i = 0; i < 6; ++i) {
    const nlohmann::json& entry = expected_["generations"][static_cast<std::size_t>(i % 3)];
    input->prompts.push_back({.ids = entry["prompt_ids"].get<std::vector<std::int32_t>>()});
    expected.push_back(entry["ids"].get<std::vector<std::int32_t>>());
  }
  input->size = {.sequences = 4, .positions = 80};
  const std::vector<generate::Answer> answers = generate::Generator(*input).answer_all();
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(answers[i].ids, expected[i]) << i;
}

}  // namespace smollm2_test
}  // namespace hawser
