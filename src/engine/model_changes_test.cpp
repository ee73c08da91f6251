#include "engine/model_changes.h"

#include <gtest/gtest.h>

namespace hawser::engine {
namespace model_changes_test {

models::ModelDescription with_experts(bool reported) {
  models::ModelDescription d;
  d.blocks.resize(3);  // the second is dense
  for (const std::size_t b : {std::size_t{0}, std::size_t{2}}) {
    d.blocks[b].moe = nn::MoeConfig{.experts = 8, .top_k = 2, .auxiliary_loss = 0.02, .reported = reported};
  }
  return d;
}

// The coefficients of the load-balancing loss and the z-loss, the same in both blocks.
std::pair<double, double> coefficients(const ModelChanges& changes, models::ModelDescription d) {
  Problems problems;
  changes.describe(d, problems);
  EXPECT_EQ(problems.lines(), "");
  EXPECT_EQ(d.blocks[0].moe->loss(), d.blocks[2].moe->loss());
  return {d.blocks[0].moe->auxiliary_loss, d.blocks[0].moe->router_z_loss};
}

TEST(ModelChanges, ARecipeSetsTheCoefficientsOfRouters) {
  Recipe recipe;
  EXPECT_EQ(coefficients(changes_of(recipe), with_experts(true)), (std::pair{0.02, 0.0}));
  EXPECT_EQ(coefficients(changes_of(recipe), with_experts(false)), (std::pair{0.0, 0.0}));
  recipe.moe.balancing = ExpertBalancing::aux_loss;
  EXPECT_EQ(coefficients(changes_of(recipe), with_experts(false)), (std::pair{0.02, 0.0}));
  recipe.moe.balancing = ExpertBalancing::model;
  recipe.moe.z_loss_coefficient = 0.001;
  EXPECT_EQ(coefficients(changes_of(recipe), with_experts(true)), (std::pair{0.02, 0.001}));
  recipe.moe.aux_loss_coefficient = 0.5;
  EXPECT_EQ(coefficients(changes_of(recipe), with_experts(false)), (std::pair{0.5, 0.001}));
  recipe.moe.balancing = ExpertBalancing::none;
  EXPECT_EQ(coefficients(changes_of(recipe), with_experts(true)), (std::pair{0.0, 0.001}));
}

TEST(ModelChanges, AModelWithoutExpertsHasNone) {
  models::ModelDescription dense;
  dense.blocks.resize(2);
  Problems problems;
  Recipe recipe;
  recipe.file = "recipe.yaml";
  changes_of(recipe).describe(dense, problems);
  EXPECT_EQ(problems.lines(), "");
  recipe.moe = {.balancing = ExpertBalancing::none, .aux_loss_coefficient = 0.1};
  changes_of(recipe).describe(dense, problems);
  EXPECT_EQ(problems.lines(),
            "recipe.yaml: the model has no experts at moe.balancing\n"
            "recipe.yaml: the model has no experts at moe.aux_loss_coefficient");
}

TEST(ModelChanges, AnEvaluationHasTheModelsOwnLoss) {
  EXPECT_EQ(coefficients(changes_for_evaluation(), with_experts(true)), (std::pair{0.02, 0.0}));
  EXPECT_EQ(coefficients(changes_for_evaluation(), with_experts(false)), (std::pair{0.0, 0.0}));
}

}  // namespace model_changes_test
}  // namespace hawser::engine
