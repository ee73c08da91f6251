// Gemma 3 270M with its real weights against transformers in float64 (tests/golden/README.md): sequences are longer than
// its windows, and the vocabulary is large.
#include <gtest/gtest.h>

#include "generate/generate.h"
#include "golden.h"
#include "text/tokenizers/tokenizer.h"

namespace hawser {
namespace {

namespace fs = std::filesystem;

class Gemma3 : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(fs::exists(model_ / "model.safetensors"))
        << "no " << model_.string() << ": run scripts/fetch-inputs --what gemma3";
    expected_ = testing::read_json(golden_ / "expected.json");
    threads_ = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  }

  const fs::path model_ = fs::path(HAWSER_SOURCE_DIR) / "inputs/gemma3";
  const fs::path golden_ = fs::path(HAWSER_SOURCE_DIR) / "tests/golden/gemma3";
  nlohmann::json expected_;
  int threads_ = 1;
};

TEST_F(Gemma3, LossAndGradientsEqualTransformers) {
  evaluate::EvaluateRequest request{.model = model_.string(),
                                    .data = (golden_ / "tokens.jsonl").string(),
                                    .sequence_length = expected_["sequence_length"],
                                    .gradient_norms = true,
                                    .threads = threads_};
  request.recipe.memory.activation_checkpointing = Checkpointing::selective;
  std::map<std::string, std::vector<double>> projections;
  const evaluate::Evaluation result = evaluate::evaluate(request, nullptr, [&](engine::Session& session) {
    projections = testing::gradient_projections(session, step::Purpose::gradient_norms);
  });
  EXPECT_EQ(result.tokens, expected_["tokens"].get<std::int64_t>());
  EXPECT_NEAR(result.loss, expected_["loss"].get<double>(), 1e-4);
  EXPECT_EQ(result.gradient_norms.size(), expected_["gradient_norms"].size());
  double largest = 0;
  for (const auto& [name, value] : result.gradient_norms) {
    ASSERT_TRUE(expected_["gradient_norms"].contains(name)) << name;
    const double norm = expected_["gradient_norms"][name];
    EXPECT_NEAR(value, norm, 1e-3 * norm) << name;
    const auto reference = expected_["projections"][name].get<std::vector<double>>();
    const double distance = testing::projected_distance(projections.at(name), reference) / norm;
    EXPECT_LT(distance, 1e-3) << name;
    largest = std::max(largest, distance);
  }
  RecordProperty("loss", cat(result.loss));
  RecordProperty("largest_relative_gradient_distance", cat(largest));
  std::printf("loss %.7f (transformers %.7f), largest relative distance of a gradient %.1e\n", result.loss,
              expected_["loss"].get<double>(), largest);
}

TEST_F(Gemma3, GreedyTextEqualsTransformers) {
  for (const nlohmann::json& entry : expected_["generations"]) {
    const std::string prompt = entry["prompt"];
    const auto ids = entry["ids"].get<std::vector<std::int32_t>>();
    Problems problems;
    auto input = generate::open_generation({.model = model_.string(),
                                            .prompt = prompt,
                                            .max_tokens = static_cast<std::int64_t>(ids.size()),
                                            .threads = threads_},
                                           problems);
    ASSERT_TRUE(problems.empty()) << problems.lines();
    EXPECT_EQ(input->prompts[0].ids, entry["prompt_ids"].get<std::vector<std::int32_t>>());
    const generate::Answer answer = generate::Generator(*input).answer_all()[0];
    EXPECT_EQ(answer.ids, ids) << prompt;
    EXPECT_EQ(answer.text, entry["text"].get<std::string>());
  }
}

}  // namespace
}  // namespace hawser
