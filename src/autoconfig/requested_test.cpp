#include "autoconfig/requested.h"

#include <gtest/gtest.h>

namespace hawser::autoconfig {
namespace requested_test {

Recipe fine_tuning(AdapterKind kind) {
  Recipe recipe;
  recipe.model.path = "model";
  recipe.adapter.kind = kind;
  return recipe;
}

double rate(AdapterKind kind, double parameters) {
  return usual_learning_rate(fine_tuning(kind), static_cast<std::int64_t>(parameters)).rate;
}

// Published or measured values (docs/adapters.md); no size is left out.
TEST(UsualLearningRate, OfAnAdapterIsThatOfItsModelsSize) {
  for (const auto& [parameters, expected] : {std::pair{135e6, 2e-3},
                                             {268e6, 2e-3},
                                             {494e6, 1e-3},
                                             {1.24e9, 5e-4},
                                             {3.2e9, 3e-4},
                                             {8e9, 2e-4},
                                             {14e9, 2e-4},
                                             {70e9, 1e-4},
                                             {1e13, 1e-4}}) {
    EXPECT_EQ(rate(AdapterKind::lora, parameters), expected) << parameters;
  }
}

TEST(UsualLearningRate, OfAnAdapterIsAboutTenTimesThatOfAllWeights) {
  for (double parameters = 1e6; parameters < 1e12; parameters *= 1.3) {
    const double ratio = rate(AdapterKind::lora, parameters) / rate(AdapterKind::none, parameters);
    EXPECT_GE(ratio, 7) << parameters;
    EXPECT_LE(ratio, 20.001) << parameters;
    EXPECT_LE(rate(AdapterKind::lora, 1.3 * parameters), rate(AdapterKind::lora, parameters));
  }
}

TEST(UsualLearningRate, SaysWhereItComesFrom) {
  EXPECT_EQ(
      usual_learning_rate(fine_tuning(AdapterKind::lora), 8'000'000'000).why,
      "adapters take about ten times that of full fine-tuning; QLoRA's for 7B and 13B parameters (Dettmers et al. "
      "2023)");
  EXPECT_EQ(usual_learning_rate(fine_tuning(AdapterKind::none), 135'000'000).why,
            "fine-tuning: common for 135M parameters");
  EXPECT_EQ(usual_learning_rate(Recipe(), 135'000'000).why, "from scratch: common for 135M parameters");
}

}  // namespace requested_test
}  // namespace hawser::autoconfig
