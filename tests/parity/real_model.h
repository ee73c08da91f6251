// A model with its real weights against transformers in float64 (tests/golden/README.md): the fixture of its tests,
// loss with gradients, and greedy text.
#pragma once

#include <gtest/gtest.h>

#include "base/testing/test_paths.h"
#include "generate/generate.h"
#include "golden.h"
#include "text/tokenizers/tokenizer.h"

namespace hawser::testing {

class RealModelTest : public ::testing::Test {
 protected:
  // `name`: of the folders in inputs/ and in tests/golden/, and what scripts/fetch-inputs downloads.
  explicit RealModelTest(const std::string& name)
      : name_(name),
        model_(std::filesystem::path(testing::kSourceFolder) / "inputs" / name),
        golden_(std::filesystem::path(testing::kSourceFolder) / "tests/golden" / name) {}

  void SetUp() override {
    ASSERT_TRUE(std::filesystem::exists(model_ / "model.safetensors"))
        << "no " << model_.string() << ": run scripts/fetch-inputs --what " << name_;
    expected_ = read_json(golden_ / "expected.json");
    threads_ = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  }

  void expect_loss_and_gradients() {
    evaluate::EvaluateRequest request{.model = model_.string(),
                                      .data = (golden_ / "tokens.jsonl").string(),
                                      .sequence_length = expected_["sequence_length"],
                                      .gradient_norms = true,
                                      .threads = threads_};
    request.recipe.memory.activation_checkpointing = Checkpointing::selective;  // saves 3 GiB
    std::map<std::string, std::vector<double>> projections;
    const evaluate::Evaluation result = evaluate::evaluate(request, nullptr, [&](engine::Session& session) {
      projections = gradient_projections(session, evaluate::gradient_purpose(session.model()));
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
      const double distance = projected_distance(projections.at(name), reference) / norm;
      EXPECT_LT(distance, 1e-3) << name;
      largest = std::max(largest, distance);
    }
    RecordProperty("loss", cat(result.loss));
    RecordProperty("largest_relative_gradient_distance", cat(largest));
    std::printf("loss %.7f (transformers %.7f), largest relative distance of a gradient %.1e\n", result.loss,
                expected_["loss"].get<double>(), largest);
  }

  void expect_greedy_text() {
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

  const std::string name_;
  const std::filesystem::path model_, golden_;
  nlohmann::json expected_;
  int threads_ = 1;
};

}  // namespace hawser::testing
