// Forms of context parallelism: those that a model allows, errors with the nearest degrees, and what auto chooses.
#include <gtest/gtest.h>

#include "config/config.h"
#include "plan/context_form.h"
#include "plan/forecast.h"
#include "support.h"

namespace hawser {
namespace context_form_test {

using plan::ContextForm;

models::ModelDescription description(std::int64_t heads, std::int64_t kv_heads) {
  return testing::llama_description({.width = 1024,
                                     .heads = heads,
                                     .kv_heads = kv_heads,
                                     .head_dim = 64,
                                     .inner = 4096,
                                     .vocabulary = 32000,
                                     .blocks = 8});
}

ParallelRecipe parallel(int context, ContextComm comm = ContextComm::automatic, int tensor = 1, int group = 0) {
  ParallelRecipe out;
  out.context_parallel_degree = context;
  out.context_comm = comm;
  out.tensor_parallel_degree = tensor;
  out.context_all_to_all_degree = group;
  return out;
}

std::string forms(const ParallelRecipe& recipe, std::int64_t heads, std::int64_t kv_heads) {
  std::string out;
  for (const ContextForm& form : plan::context_forms(recipe, description(heads, kv_heads))) {
    out += (out.empty() ? "" : ", ") + plan::context_text(form);
  }
  return out;
}

TEST(ContextForm, AModelAllowsThoseThatDivideItsHeads) {
  EXPECT_EQ(forms(parallel(1), 32, 8), "all_gather");
  EXPECT_EQ(forms(parallel(2), 32, 8), "all_gather, ring, all_to_all");
  EXPECT_EQ(forms(parallel(8), 32, 8), "all_gather, ring, all_to_all, hybrid of 4");
  EXPECT_EQ(forms(parallel(32), 32, 8), "all_gather, ring, all_to_all, hybrid of 8");
  EXPECT_EQ(forms(parallel(64), 32, 8), "all_gather, ring, hybrid of 8");
  EXPECT_EQ(forms(parallel(12), 32, 8), "all_gather, ring, hybrid of 4");
  EXPECT_EQ(forms(parallel(3), 32, 8), "all_gather, ring");
  EXPECT_EQ(forms(parallel(4), 32, 1), "all_gather, ring, all_to_all");  // one key-value head has no groups
  // Of the heads of a tensor rank, in groups that a host has beside the tensor ranks.
  EXPECT_EQ(forms(parallel(8, ContextComm::automatic, 4), 32, 8), "all_gather, ring, all_to_all, hybrid of 2");
  EXPECT_EQ(forms(parallel(8, ContextComm::automatic, 8), 32, 8), "all_gather, ring");
  // A group that the recipe names may have copies of key-value heads.
  EXPECT_EQ(forms(parallel(8, ContextComm::automatic, 1, 2), 32, 1), "all_gather, ring, all_to_all, hybrid of 2");
}

TEST(ContextForm, FollowsFromTheKeysAndBack) {
  const models::ModelDescription model = description(32, 8);
  const auto form = [&](const ParallelRecipe& recipe) { return plan::context_form(recipe, model); };
  EXPECT_EQ(form(parallel(8, ContextComm::ring)), (ContextForm{ContextComm::ring, 1}));
  EXPECT_EQ(form(parallel(8, ContextComm::all_to_all)), (ContextForm{ContextComm::all_to_all, 8}));
  EXPECT_EQ(form(parallel(8, ContextComm::hybrid)), (ContextForm{ContextComm::hybrid, 4}));
  EXPECT_EQ(form(parallel(8, ContextComm::hybrid, 1, 2)), (ContextForm{ContextComm::hybrid, 2}));
  EXPECT_EQ(form(parallel(8)), (ContextForm{ContextComm::all_gather, 1}));
  EXPECT_EQ(form(parallel(1, ContextComm::ring)), ContextForm());
  for (const ContextForm& each : plan::context_forms(parallel(8), model)) {
    ParallelRecipe named = parallel(8);
    plan::set_context_form(named, each);
    EXPECT_EQ(form(named), each);
    Recipe recipe;
    recipe.data.sequence_length = 4096;
    recipe.parallel = named;
    EXPECT_EQ(plan::form_of(plan::parallelism_of(recipe, models::Model(model), 8)), each);
  }
}

std::string errors(const ParallelRecipe& parallel, std::int64_t heads, std::int64_t kv_heads) {
  Recipe recipe;
  recipe.parallel = parallel;
  Problems problems;
  plan::check_context_form(recipe, description(heads, kv_heads), problems);
  return problems.lines();
}

TEST(ContextForm, ErrorsHaveTheNearestDegreesThatDivide) {
  EXPECT_EQ(errors(parallel(8, ContextComm::all_to_all), 32, 8), "");
  EXPECT_EQ(
      errors(parallel(6, ContextComm::all_to_all), 32, 8),
      "an all-to-all over ranks that do not divide the attention heads (expected a divisor of 32 heads that divides "
      "8 key-value heads or is a multiple of them, got 6) at parallel.context_parallel_degree; try "
      "parallel.context_parallel_degree: 4 or 8, or parallel.context_comm: ring");
  EXPECT_EQ(
      errors(parallel(64, ContextComm::all_to_all), 32, 8),
      "an all-to-all over ranks that do not divide the attention heads (expected a divisor of 32 heads that divides "
      "8 key-value heads or is a multiple of them, got 64) at parallel.context_parallel_degree; try "
      "parallel.context_parallel_degree: 32, or parallel.context_comm: ring");
  EXPECT_EQ(
      errors(parallel(12, ContextComm::hybrid, 1, 6), 32, 8),
      "an all-to-all over ranks that do not divide the attention heads (expected a divisor of 32 heads that divides "
      "8 key-value heads or is a multiple of them, got 6) at parallel.context_all_to_all_degree; try "
      "parallel.context_all_to_all_degree: 4, or parallel.context_comm: ring");
  EXPECT_EQ(errors(parallel(4, ContextComm::hybrid), 32, 1),
            "no group of context ranks divides the key-value heads (expected a common divisor of 4 context ranks and 1 "
            "key-value heads of a rank, got hybrid) at parallel.context_comm; try parallel.context_comm: ring, or "
            "parallel.context_all_to_all_degree");
}

Recipe long_recipe(std::int64_t length) {
  Recipe recipe;
  recipe.data.sequence_length = length;
  recipe.data.pack = Packing::chunks;
  recipe.run.ranks = 8;
  recipe.parallel = parallel(8);
  return recipe;
}

plan::Forecast forecast(const Recipe& recipe, const models::Model& model, const plan::Target& target) {
  return plan::Forecaster(recipe, model, 8, target, {.cores = 8, .memory = std::int64_t{1} << 50}, 1).forecast();
}

// The forecast of auto is that of the form that is predicted to be the fastest, and a form that does not fit is last.
TEST(ContextForm, AutoIsTheFastestThatFits) {
  const models::Model model(description(16, 8));
  const plan::Target target = plan::load_target("h200");
  for (const std::int64_t length : {8192, 65536}) {
    const Recipe recipe = long_recipe(length);
    const plan::Forecaster forecaster(recipe, model, 8, target, {.cores = 8, .memory = std::int64_t{1} << 50}, 1);
    const std::vector<plan::ContextForecast> forms = forecaster.context_forms();
    ASSERT_EQ(forms.size(), 4u);
    const plan::Forecast chosen = forecaster.forecast();
    EXPECT_EQ(plan::form_of(chosen.layout), forms.front().form);
    for (const plan::ContextForecast& form : forms) {
      Recipe named = recipe;
      plan::set_context_form(named.parallel, form.form);
      const plan::Forecast of_form = forecast(named, model, target);
      EXPECT_GE(of_form.seconds, 0.97 * chosen.seconds) << plan::context_text(form.form);
      EXPECT_NEAR(form.seconds, of_form.seconds, 0.05 * of_form.seconds);  // of 4 of 8 blocks
      EXPECT_NEAR(static_cast<double>(form.needed), static_cast<double>(of_form.needed()), 0.1 * of_form.needed());
    }
    // One that needs the most memory does not fit with a byte less.
    Recipe tight = recipe;
    const auto most = std::ranges::max_element(forms, {}, &plan::ContextForecast::needed);
    tight.memory.capacity = Bytes(most->needed - 1);
    const auto fitting =
        plan::Forecaster(tight, model, 8, target, {.cores = 8, .memory = std::int64_t{1} << 50}, 1).context_forms();
    EXPECT_EQ(fitting.back().form, most->form);
  }
}

}  // namespace context_form_test
}  // namespace hawser
