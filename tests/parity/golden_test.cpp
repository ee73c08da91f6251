// Loss and every gradient of tiny random models of all families against transformers in float64.
#include <gtest/gtest.h>
#include "base/testing/test_paths.h"

#include "golden.h"

namespace hawser {
namespace golden_test {

namespace fs = std::filesystem;

class Golden : public ::testing::TestWithParam<std::string> {};

TEST_P(Golden, LossAndGradientsEqualTransformers) {
  const fs::path folder = fs::path(testing::kSourceFolder) / "tests/golden" / GetParam();
  const nlohmann::json expected = testing::read_json(folder / "expected.json");
  evaluate::EvaluateRequest request{.model = folder.string(),
                                    .data = (folder / "data.jsonl").string(),
                                    .sequence_length = expected.value("sequence_length", 4096),
                                    .gradient_norms = true};
  std::map<std::string, std::vector<double>> projections;
  const evaluate::Evaluation result = evaluate::evaluate(request, nullptr, [&](engine::Session& session) {
    projections = testing::gradient_projections(session, evaluate::gradient_purpose(session.model()));
  });
  EXPECT_EQ(result.tokens, expected["tokens"].get<std::int64_t>());
  const double loss = expected["loss"];
  EXPECT_NEAR(result.loss, loss, 1e-5 * loss);
  EXPECT_EQ(result.gradient_norms.size(), expected["gradient_norms"].size());
  for (const auto& [name, value] : result.gradient_norms) {
    ASSERT_TRUE(expected["gradient_norms"].contains(name)) << name;
    const double norm = expected["gradient_norms"][name];
    EXPECT_NEAR(value, norm, 1e-4 * norm + 1e-8) << name;
    const auto reference = expected["projections"][name].get<std::vector<double>>();
    EXPECT_LT(testing::projected_distance(projections.at(name), reference), 1e-4 * norm + 1e-8) << name;
  }

  request.gradient_norms = false;
  const evaluate::Evaluation loss_only = evaluate::evaluate(request, nullptr);
  EXPECT_EQ(loss_only.tokens, result.tokens);
  EXPECT_NEAR(loss_only.loss, loss, 1e-5 * loss);
}

std::string last_part(const ::testing::TestParamInfo<std::string>& of) {
  return fs::path(of.param).filename().string();
}

INSTANTIATE_TEST_SUITE_P(Tiny, Golden, ::testing::ValuesIn(testing::golden_cases("tiny")), last_part);
INSTANTIATE_TEST_SUITE_P(Families, Golden, ::testing::ValuesIn(testing::golden_cases("families")), last_part);

}  // namespace golden_test
}  // namespace hawser
