// The memory that a recipe in FP8 is planned to need is what its session allocates, whichever of its steps needs most.
#include <gtest/gtest.h>

#include "engine/model_changes.h"
#include "plan/forecast.h"
#include "support.h"

namespace hawser {
namespace fp8_plan_test {

models::ModelDescription with_large_experts() {
  models::ModelDescription description =
      testing::llama_description({.width = 256, .head_dim = 32, .inner = 64, .vocabulary = 64, .blocks = 2});
  for (int block = 0; block < 2; ++block) {
    testing::set_experts(description, block, 8, 1);
    description.blocks[static_cast<std::size_t>(block)].moe->inner = 512;
  }
  return description;
}

Recipe recipe_of(Fp8Scaling scaling, std::int64_t verify_every) {
  Recipe recipe;
  recipe.data.train = {"text.txt"};
  recipe.data.validation_fraction = 0.5;
  recipe.data.sequence_length = 64;
  recipe.train.global_batch_size = 2;
  recipe.precision.compute = ComputePrecision::fp8;
  recipe.precision.fp8.scaling = scaling;
  recipe.precision.fp8.verify_every = verify_every;
  return recipe;
}

// The first step of delayed scaling widens the weights of all experts of a layer at once: it needs most.
TEST(Fp8Plan, CountsTheStepThatNeedsMost) {
  for (const bool experts : {false, true}) {
    for (const Fp8Scaling scaling : {Fp8Scaling::current, Fp8Scaling::delayed, Fp8Scaling::block}) {
      if (experts && scaling == Fp8Scaling::block) continue;  // not supported
      for (const std::int64_t verify_every : {0, 5}) {
        SCOPED_TRACE(cat("experts ", experts, ", scaling ", static_cast<int>(scaling), ", ", verify_every));
        const Recipe recipe = recipe_of(scaling, verify_every);
        const models::ModelDescription description =
            experts ? with_large_experts() : testing::llama_description({.vocabulary = 64, .blocks = 2});
        const models::Model model(description, engine::changes_of(recipe).spec_of);
        const plan::Forecaster forecaster(recipe, model, 1, plan::load_target("cpu"), plan::this_machine(), 1);
        const plan::Forecast forecast = forecaster.forecast();
        const auto cpu = make_cpu_device();
        const auto mesh = comm::make_self_mesh();
        const engine::Session session(model, forecast.layout, *cpu, *mesh, {step::Purpose::train, step::Purpose::loss});
        EXPECT_EQ(forecast.largest().costs.total_bytes, session.planned_bytes());
        EXPECT_EQ(forecast.largest().costs.pinned_bytes, session.pinned_bytes());
        if (!experts || scaling == Fp8Scaling::current || verify_every > 0) continue;
        const plan::RankPlan most_steps = plan::plan_rank(model, forecast.layout, step::Purpose::train, 0);
        EXPECT_GT(session.planned_bytes(), most_steps.bytes()) << "this test cannot tell";
      }
    }
  }
}

}  // namespace fp8_plan_test
}  // namespace hawser
