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
      "8 key-value heads or is a multiple, got 6) at parallel.context_parallel_degree; try "
      "parallel.context_parallel_degree: 4 or 8, or parallel.context_comm: ring");
  EXPECT_EQ(
      errors(parallel(64, ContextComm::all_to_all), 32, 8),
      "an all-to-all over ranks that do not divide the attention heads (expected a divisor of 32 heads that divides "
      "8 key-value heads or is a multiple, got 64) at parallel.context_parallel_degree; try "
      "parallel.context_parallel_degree: 32, or parallel.context_comm: ring");
  EXPECT_EQ(
      errors(parallel(12, ContextComm::hybrid, 1, 6), 32, 8),
      "an all-to-all over ranks that do not divide the attention heads (expected a divisor of 32 heads that divides "
      "8 key-value heads or is a multiple, got 6) at parallel.context_all_to_all_degree; try "
      "parallel.context_all_to_all_degree: 4, or parallel.context_comm: ring");
  EXPECT_EQ(
      errors(parallel(4, ContextComm::hybrid), 32, 1),
      "no group of context ranks divides the key-value heads (expected a common divisor of 4 context ranks and 1 "
      "key-value head of a rank, got hybrid) at parallel.context_comm; try parallel.context_all_to_all_degree: 2, "
      "or parallel.context_comm: ring");
  EXPECT_EQ(errors(parallel(2, ContextComm::hybrid), 32, 8),
            "no group of context ranks divides the key-value heads (expected a common divisor of 2 context ranks and 8 "
            "key-value heads of a rank, got hybrid) at parallel.context_comm; try parallel.context_comm: ring");
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

// The forecast of auto is that of the form that is predicted to be the fastest of those that fit.
TEST(ContextForm, AutoIsTheFastestThatFits) {
  const models::Model model(description(16, 8));
  const plan::Target target = plan::load_target("h200");
  for (const std::int64_t length : {8192, 65536}) {
    const Recipe recipe = long_recipe(length);
    const plan::Forecaster forecaster(recipe, model, 8, target, {.cores = 8, .memory = std::int64_t{1} << 50}, 1);
    const plan::Forecast chosen = forecaster.forecast();
    const std::vector<plan::ContextForecast>& forms = chosen.context_forms;
    ASSERT_EQ(forms.size(), 4u);
    EXPECT_EQ(plan::form_of(chosen.layout), forms.front().form);
    for (const plan::ContextForecast& form : forms) {
      Recipe named = recipe;
      plan::set_context_form(named.parallel, form.form);
      const plan::Forecast of_form = forecast(named, model, target);
      EXPECT_TRUE(of_form.context_forms.empty());
      EXPECT_GE(of_form.seconds, 0.97 * chosen.seconds) << plan::context_text(form.form);
      EXPECT_NEAR(form.seconds, of_form.seconds, 0.05 * of_form.seconds);  // of 4 of 8 blocks
      EXPECT_NEAR(static_cast<double>(form.needed), static_cast<double>(of_form.needed()), 0.1 * of_form.needed());
      // Where the fastest form does not fit, the next one is taken.
      if (form.form != forms.front().form && of_form.needed() < chosen.needed()) {
        Recipe tight = recipe;
        tight.memory.capacity = Bytes(chosen.needed() - 1);
        EXPECT_NE(plan::form_of(forecast(tight, model, target).layout), forms.front().form);
      }
    }
    EXPECT_TRUE(std::ranges::is_sorted(forms, {}, &plan::ContextForecast::seconds));
  }
}

// A ring waits for the rank with the most work in each turn, where chunks are dealt by work.
TEST(ContextForm, PackedDocumentsMakeARingWait) {
  const models::Model model(description(16, 8));
  Recipe recipe = long_recipe(65536);
  recipe.parallel = parallel(8, ContextComm::ring);
  const auto time = [&] { return forecast(recipe, model, plan::load_target("h200")).stages[0].time; };
  EXPECT_FALSE(time().busy.contains("waits in the ring"));
  recipe.data.pack = Packing::documents;
  const plan::StepTime packed = time();
  ASSERT_TRUE(packed.busy.contains("waits in the ring"));
  EXPECT_GT(packed.busy.at("waits in the ring"), 0.01 * packed.busy.at("attention"));
  EXPECT_LT(packed.busy.at("waits in the ring"), 0.5 * packed.busy.at("attention"));
  recipe.parallel.context_comm = ContextComm::all_to_all;
  EXPECT_FALSE(time().busy.contains("waits in the ring"));
}

// Keys of a rank leave when the ranks behind have them: however many ranks there are, a rank has those of two.
TEST(ContextForm, ARingNeedsAsMuchMemoryOnMoreRanks) {
  const models::Model model(description(16, 8));
  const auto bytes = [&](int ranks) {
    Recipe recipe = long_recipe(std::int64_t{4096} * ranks);
    recipe.parallel = parallel(ranks, ContextComm::ring);
    recipe.parallel.hybrid_shard_degree = 1;
    recipe.run.ranks = ranks;
    recipe.memory.activation_checkpointing = Checkpointing::full;
    const plan::Layout layout = plan::make_layout(recipe, model, ranks, DType::bf16, 1, DeviceKind::cuda);
    return plan::plan_rank(model, layout, step::Purpose::train, 0).buffers.placement.bytes;
  };
  const std::int64_t few = bytes(4), many = bytes(16);
  EXPECT_LT(static_cast<double>(many), 1.02 * static_cast<double>(few));
}

// Attention of every form runs in cuDNN's kernels, with packed documents and with one in each sequence.
TEST(ContextForm, NoFormHasSlowKernels) {
  models::ModelDescription windows = description(16, 8);
  for (models::BlockDescription& block : windows.blocks) block.attention.window = 1024;
  for (const models::ModelDescription& each : {description(16, 8), windows}) {
    const models::Model model(each);
    for (const Packing pack : {Packing::chunks, Packing::documents}) {
      for (const ContextForm& form : plan::context_forms(parallel(8), each)) {
        Recipe recipe = long_recipe(65536);
        recipe.data.pack = pack;
        recipe.precision.compute = ComputePrecision::bf16;
        plan::set_context_form(recipe.parallel, form);
        const plan::Forecast f = forecast(recipe, model, plan::load_target("h200"));
        EXPECT_FALSE(f.stages[0].time.busy.contains(plan::kSlowAttention)) << plan::context_text(form);
      }
    }
  }
}

std::vector<std::string> suggested(const Recipe& recipe, const models::Model& model) {
  std::vector<std::string> out;
  const plan::Forecaster forecaster(recipe, model, 8, plan::load_target("h200"),
                                    {.cores = 8, .memory = std::int64_t{1} << 50}, 1);
  for (const plan::Suggestion& suggestion : forecaster.suggestions(12)) {
    Problems problems;
    plan::check_context_form(suggestion.recipe, model.whole(), problems);
    EXPECT_EQ(problems.lines(), "") << suggestion.flags();
    out.push_back(suggestion.flags());
  }
  return out;
}

// Suggestions are recipes that fit accepts, also where other degrees allow other forms.
TEST(ContextForm, SuggestionsKeepToWhatTheModelAllows) {
  const models::Model model(description(16, 8));
  Recipe recipe = long_recipe(65536);
  recipe.train.global_batch_size = 8;
  for (const auto& [comm, group] : {std::pair(ContextComm::hybrid, 4), {ContextComm::all_to_all, 0}}) {
    recipe.parallel = parallel(8, comm, 1, group);
    const std::int64_t needed = forecast(recipe, model, plan::load_target("h200")).needed();
    recipe.memory.capacity = Bytes(needed * 9 / 10);
    EXPECT_FALSE(suggested(recipe, model).empty());
    recipe.memory.capacity.reset();
  }
}

}  // namespace context_form_test
}  // namespace hawser
