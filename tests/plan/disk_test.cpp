// Disk space of a run, and the first lines of a plan.
#include <gtest/gtest.h>

#include "base/testing/temporary_folder.h"
#include "plan/disk.h"
#include "plan/report.h"
#include "support.h"
#include "support/toy_slices.h"

namespace hawser {
namespace disk_test {

TEST(Disk, CountsTheCheckpointsThatExistAtOnce) {
  const models::Model model(testing::llama_description({}));
  struct Case {
    std::int64_t every_steps, evaluate_every;
    double every_minutes;
    int keep_last, kept, all;
  };
  // 20 steps of 30 seconds.
  for (const Case& c : {Case{0, 0, 0, 3, 1, 1}, Case{10, 0, 0, 3, 2, 2}, Case{5, 0, 0, 3, 3, 4}, Case{5, 0, 0, 4, 4, 4},
                        Case{5, 0, 0, 1, 1, 2}, Case{0, 5, 0, 3, 3, 5}, Case{0, 10, 0, 3, 2, 2},
                        Case{0, 10, 2, 3, 3, 5}, Case{0, 0, 6, 3, 2, 2}, Case{20, 20, 0, 3, 1, 1}}) {
    Recipe recipe;
    recipe.checkpoint.every_steps = c.every_steps;
    recipe.checkpoint.every_minutes = c.every_minutes;
    recipe.checkpoint.keep_last = c.keep_last;
    recipe.train.evaluate_every = c.evaluate_every;
    const plan::DiskUse disk = plan::disk_use(recipe, model, {}, 20, 30);
    const std::string what = cat(c.every_steps, " ", c.evaluate_every, " ", c.every_minutes, " ", c.keep_last);
    EXPECT_EQ(disk.checkpoint, 12 * model.parameters());
    EXPECT_EQ(disk.kept, c.kept) << what;
    EXPECT_EQ(disk.checkpoints(), c.all) << what;
    EXPECT_EQ(disk.total(), c.all * disk.checkpoint) << what;
    // A run of unknown length saves as often as it can.
    const bool saves = c.every_steps + c.evaluate_every > 0 || c.every_minutes > 0;
    EXPECT_EQ(plan::disk_use(recipe, model, {}, std::nullopt, 30).checkpoints(),
              saves ? c.keep_last + 1 + (c.evaluate_every > 0 ? 1 : 0) : 1)
        << what;
  }
}

// Frozen weights are those of the base model's folder.
TEST(Disk, ACheckpointHasWhatTrains) {
  const models::Model all(testing::llama_description({}));
  const models::Model model(testing::llama_description({}), [](const nn::Param& param) {
    nn::FlatSpec spec = nn::common_domain(param);
    spec.trainable = param.name.find("down_proj") != std::string::npos;
    return spec;
  });
  std::int64_t trainable = 0;
  for (const nn::Flat& flat : model.flats()) {
    for (const nn::Param& param : flat.params()) trainable += flat.spec().trainable ? param.elements() : 0;
  }
  plan::LayoutChoices choices;
  choices.compute = DType::bf16;
  EXPECT_EQ(plan::checkpoint_bytes(all, plan::derive(choices, all)), 12 * all.parameters());
  EXPECT_EQ(plan::checkpoint_bytes(model, plan::derive(choices, model)), 12 * trainable);
}

// Each rank has a quarter of the experts and half of the slices; a checkpoint has all.
TEST(Disk, ACheckpointHasTheExpertsOfAllRanks) {
  models::ModelDescription whole = testing::divisible(testing::toy_description());
  testing::set_experts(whole, 1, 8, 2);
  const nn::FlatSpecOf own([](const nn::Param& param) {
    nn::FlatSpec spec = param.flat;
    if (param.of_linear) spec.scaled = true;
    return spec;
  });
  plan::LayoutChoices choices;
  const models::Model complete(whole, own);
  const std::int64_t bytes = plan::checkpoint_bytes(complete, plan::derive(choices, complete));
  EXPECT_GT(bytes, 12 * models::Model(whole).parameters());  // and scales
  choices.mesh = {.tensor = 2, .shard = 4, .expert = 4};
  models::ModelDescription part = testing::half_of(whole, 1, {.vocabulary = true});
  part.blocks.at(1).moe->experts_shard = {.index = 3, .count = 4};
  const models::Model of_rank(part, own);
  EXPECT_EQ(plan::checkpoint_bytes(of_rank, plan::derive(choices, of_rank)), bytes);
}

TEST(Disk, EstimatesPreparedDataFromTheFiles) {
  const models::Model model(testing::llama_description({}));
  const TemporaryFolder folder;
  folder.write("a.txt", std::string(4000, 'x'));
  folder.write("b.jsonl", std::string(4000, 'x'));
  Recipe recipe;
  recipe.folder = folder.path();
  recipe.data.train = {"a.txt"};
  EXPECT_EQ(plan::disk_use(recipe, model, {}, 1, 1).prepared, 2000);  // 1,000 ids of two bytes
  recipe.data.validation = {{.name = "", .paths = {"b.jsonl"}}};
  EXPECT_EQ(plan::disk_use(recipe, model, {}, 1, 1).prepared, 2000 + 6000);  // and labels of four
  recipe.data.train = {"missing.txt"}, recipe.data.validation.clear();
  EXPECT_EQ(plan::disk_use(recipe, model, {}, 1, 1).prepared, 0);
}

TEST(Disk, FreeSpaceIsThatOfTheNearestFolder) {
  const TemporaryFolder folder;
  const auto here = plan::free_disk(folder.path()), below = plan::free_disk(folder.path("a/b/c"));
  ASSERT_TRUE(here && below);
  EXPECT_GT(*here, 0);
  EXPECT_GT(*below, 0);
  EXPECT_TRUE(plan::free_disk("/no/such/folder"));
}

TEST(Headline, NamesWhatFitsAndHowLongItTakes) {
  plan::Forecast forecast{.layout = {}, .stages = {{.costs = {.total_bytes = std::int64_t{1} << 30}, .time = {}}}};
  forecast.capacity = std::int64_t{2} << 30;
  forecast.seconds = 18.9;
  plan::PlanFacts facts{.steps = {.count = 20}, .disk = {}, .free_disk = {}, .alternatives = {}};
  EXPECT_EQ(plan::headline(forecast, facts), "fits; 19 s a step; 20 steps about 6.3 min");
  facts.steps = {.count = 21, .estimated = true};
  EXPECT_EQ(plan::headline(forecast, facts), "fits; 19 s a step; about 21 steps about 6.6 min");
  facts.steps = {};  // known when the data is read
  EXPECT_EQ(plan::headline(forecast, facts), "fits; 19 s a step");
  forecast.stages.front().costs.total_bytes = std::int64_t{1040} << 30;
  EXPECT_EQ(plan::headline(forecast, facts), "does not fit: needs 1.02 TiB per rank, has 2.00 GiB");
  facts.alternatives.ranks =
      plan::FittingRanks{.ranks = 1024, .changes = {{"train.global_batch_size", "1024"}}, .needed = 1 << 30};
  EXPECT_EQ(plan::headline(forecast, facts),
            "does not fit: needs 1.02 TiB per rank, has 2.00 GiB; fits from --ranks 1024 --set "
            "train.global_batch_size=1024");
  facts.alternatives.suggestions = {{.changes = {{"train.micro_batch_size", "1"}}, .recipe = {}}};
  EXPECT_EQ(plan::headline(forecast, facts),
            "does not fit: needs 1.02 TiB per rank, has 2.00 GiB; fits with --set train.micro_batch_size=1");
  facts.alternatives.ranks->changes.clear();
  EXPECT_EQ(plan::headline(forecast, facts),
            "does not fit: needs 1.02 TiB per rank, has 2.00 GiB; fits with --set train.micro_batch_size=1, or from "
            "--ranks 1024");
}

TEST(Headline, IsFollowedByTheDiskAndThisMachinesCpu) {
  Recipe recipe;
  recipe.name = "small";
  recipe.data.sequence_length = 64;
  recipe.train.steps = 20;
  const models::Model model(testing::llama_description({}));
  const plan::Forecaster forecaster(recipe, model, 1, plan::load_target("cpu"), plan::this_machine(), 1);
  const plan::Forecast forecast = forecaster.forecast();
  const auto text = [&](std::int64_t free) {
    return plan::plan_text(recipe, model, forecaster.target(), forecast,
                           {.steps = {.count = 20},
                            .disk = plan::disk_use(recipe, model, forecast.layout, 20, forecast.seconds),
                            .free_disk = free,
                            .alternatives = {}});
  };
  const std::string checkpoint = format_bytes(Bytes(12 * model.parameters()));
  const std::string ample = text(std::int64_t{1} << 30), tight = text(1 << 10);
  EXPECT_TRUE(ample.starts_with("small: fits; ")) << ample;
  EXPECT_NE(ample.find("a step; 20 steps about "), std::string::npos) << ample;
  EXPECT_NE(ample.find(cat("\ndisk: ", checkpoint, ", 1 checkpoint of ", checkpoint, "; 1.00 GiB free\n")),
            std::string::npos)
      << ample;
  EXPECT_NE(tight.find(cat("\ndisk: does not fit: ", checkpoint)), std::string::npos) << tight;
  EXPECT_NE(ample.find(cat("\non 1 rank of this machine's CPU",
                           plan::cpu_model().empty() ? "" : ": " + plan::cpu_model(), ", ")),
            std::string::npos)
      << ample;
  EXPECT_EQ(ample.find("0.00 s"), std::string::npos) << ample;
}

}  // namespace disk_test
}  // namespace hawser
