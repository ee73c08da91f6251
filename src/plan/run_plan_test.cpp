#include "plan/run_plan.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/testing/temporary_folder.h"

namespace hawser::plan {
namespace run_plan_test {

TEST(RunPlan, DataHaveDefaults) {
  const TemporaryFolder folder;
  Recipe recipe;
  recipe.folder = folder.path("");
  recipe.output = "runs/x";
  recipe.model.path = "model";
  recipe.train.seed = 5;
  EXPECT_EQ(resolve_data(recipe).tokenizer, "");
  std::filesystem::create_directories(folder.path("model"));
  folder.write("model/tokenizer.json", "{}");
  const prepare::PrepareOptions with = resolve_data(recipe);
  EXPECT_EQ(with.tokenizer, folder.path("model/tokenizer.json"));
  EXPECT_EQ(with.output, folder.path("runs/x/data"));
  EXPECT_TRUE(with.own_folder);
  EXPECT_EQ(with.seed, 5u);
}

TEST(RunPlan, EvaluatesWhatIsHeldOut) {
  const TemporaryFolder folder;
  Recipe recipe;
  recipe.folder = folder.path("");
  recipe.data.train = {"a.txt"};
  EXPECT_FALSE(evaluates(recipe));
  recipe.data.validation_fraction = 0.1;
  EXPECT_TRUE(evaluates(recipe));
  recipe.data.validation_fraction = 0;
  recipe.data.validation = {{.name = "", .paths = {"b.txt"}}};
  EXPECT_TRUE(evaluates(recipe));
  // Token files that are prepared already: those that there are.
  recipe.data.train.clear();
  recipe.data.validation.clear();
  EXPECT_FALSE(evaluates(recipe));
  recipe.data.prepared = "tokens";
  EXPECT_FALSE(evaluates(recipe));
  std::filesystem::create_directories(folder.path("tokens"));
  folder.write("tokens/valid.idx", "");
  EXPECT_TRUE(evaluates(recipe));
}

TEST(RunPlan, DefaultsAndPathsAreResolved) {
  Recipe recipe;
  recipe.folder = "/runs";
  recipe.output = "out";
  recipe.model.config = "configs/c.json";
  recipe.data.sequence_length = 1024;
  recipe.train.steps = 10;
  recipe.train.global_batch_size = 4;
  recipe.train.evaluate_batches = 3;
  RunPlan plan = resolve(recipe);
  EXPECT_EQ(plan.files.checkpoints, "/runs/out/checkpoints");
  EXPECT_EQ(plan.model, "/runs/configs/c.json");
  EXPECT_TRUE(plan.random_weights);
  EXPECT_FALSE(plan.prepares);
  EXPECT_EQ(plan.packing.max_documents, 16);
  EXPECT_EQ(plan.evaluate_sequences, 12);
  EXPECT_EQ(plan.saves.every_minutes, 15);
  EXPECT_TRUE(plan.saves.asynchronous);
  EXPECT_FALSE(plan.saves.keep_best);
  EXPECT_EQ(plan.tokens_per_step(), 4096);
  recipe.checkpoint.every_steps = 10;  // the last step: nothing to save before
  EXPECT_FALSE(resolve(recipe).saves.every_minutes);
  EXPECT_FALSE(resolve(recipe).saves.asynchronous);
}

TEST(RunPlan, EpochsBecomeSteps) {
  Recipe recipe;
  recipe.train.epochs = 0.1;
  recipe.train.global_batch_size = 1;
  RunPlan plan = resolve(recipe);
  EXPECT_EQ(plan.steps, 0);
  resolve_steps(plan, 30);
  EXPECT_EQ(plan.steps, 3);
  EXPECT_EQ(plan.learning_rate.steps, 3);
  EXPECT_EQ(plan.recipe.train.steps, 3);
  recipe.optimizer.warmup_steps = 4;
  plan = resolve(recipe);
  EXPECT_THROW(resolve_steps(plan, 30), UserError);
  recipe.train.epochs = 0.07;
  plan = resolve(recipe);
  resolve_steps(plan, 100);
  EXPECT_EQ(plan.steps, 7) << "0.07 * 100 is above 7 in binary numbers";
}

TEST(RunPlan, SharesOfTheRunBecomeSteps) {
  Recipe recipe;
  recipe.train.epochs = 1;
  recipe.train.global_batch_size = 1;
  recipe.optimizer.schedule = LearningRateSchedule::wsd;
  recipe.optimizer.warmup_ratio = 0.05;
  RunPlan plan = resolve(recipe);
  resolve_steps(plan, 30);
  EXPECT_EQ(plan.learning_rate.warmup_steps, 2);  // of 1.5, as in transformers
  EXPECT_EQ(plan.learning_rate.decay_steps, 3);
  recipe.optimizer.warmup_ratio = 0.95;
  plan = resolve(recipe);
  resolve_steps(plan, 30);
  EXPECT_EQ(plan.learning_rate.warmup_steps, 29);
  EXPECT_EQ(plan.learning_rate.decay_steps, 1);  // what the warm-up leaves
  recipe.optimizer.decay_steps = 2;
  plan = resolve(recipe);
  EXPECT_THROW(resolve_steps(plan, 30), UserError);
}

TEST(RunPlan, ChunksAreOneDocumentEach) {
  DataRecipe data;
  data.pack = Packing::chunks;
  data.sequence_length = 4096;
  data.max_documents = 9;
  EXPECT_EQ(packing_of(data).max_documents, 1);
}

}  // namespace run_plan_test
}  // namespace hawser::plan
