// The pipeline of a recipe: cuts and schedules of its keys, and one line for each that cannot be.
#include "plan/pipeline_form.h"

#include <gtest/gtest.h>

#include "config/config.h"

namespace hawser {
namespace pipeline_form_test {

using models::PipelinePartition;

Recipe recipe_of(const std::vector<std::string>& keys) {
  return override_recipe(Recipe{}, keys);
}

const std::string kStages4 = "parallel.pipeline_parallel_degree=4",
                  kInterleaved = "parallel.pipeline_schedule=interleaved";

TEST(PipelineForm, CutsAreThoseOfTheKeys) {
  EXPECT_EQ(plan::partition_of(recipe_of({}).parallel, 32), PipelinePartition());
  EXPECT_EQ(plan::partition_of(recipe_of({kStages4}).parallel, 30), (PipelinePartition{4, {8, 15, 23, 30}}));
  EXPECT_EQ(plan::partition_of(recipe_of({kStages4, kInterleaved}).parallel, 32),
            (PipelinePartition{4, {4, 8, 12, 16, 20, 24, 28, 32}}));
  const Recipe listed = recipe_of({kStages4, "parallel.pipeline_partition=[9, 0, 2*3]"});
  const PipelinePartition cuts = plan::partition_of(listed.parallel, 15);
  EXPECT_EQ(cuts, (PipelinePartition{4, {9, 9, 12, 15}}));
  EXPECT_EQ(plan::blocks_of(cuts), listed.parallel.pipeline_partition);
  // With one stage the other keys have no effect.
  EXPECT_EQ(plan::partition_of(recipe_of({kInterleaved, "parallel.pipeline_partition=[1, 2]"}).parallel, 3),
            PipelinePartition());
}

TEST(PipelineForm, SaysWhatItIs) {
  plan::Parallelism parallelism;
  EXPECT_EQ(plan::pipeline_text(parallelism), "");
  parallelism.partition = {4, {9, 17, 25, 32}};
  parallelism.schedule = plan::schedule_of(PipelineSchedule::one_forward_one_backward, 4);
  EXPECT_EQ(plan::pipeline_text(parallelism), "4 pipeline stages by 1f1b, blocks [9,2*8,7]");
  parallelism.partition.stages = 2;
  parallelism.schedule = plan::schedule_of(PipelineSchedule::interleaved, 2, 2);
  EXPECT_EQ(plan::pipeline_text(parallelism),
            "2 pipeline stages by interleaved with 2 model chunks a stage, blocks [9,2*8,7]");
}

// "" without a problem.
std::string problems_of(const std::vector<std::string>& keys, int blocks) {
  Problems problems;
  plan::check_pipeline(recipe_of(keys), blocks, problems);
  return problems.lines();
}

TEST(PipelineForm, WhatCannotBeSaysWhatWorks) {
  EXPECT_EQ(problems_of({"parallel.pipeline_virtual_stages=3", "parallel.pipeline_partition=[7]"}, 2), "");
  EXPECT_EQ(problems_of({kStages4}, 4), "");
  EXPECT_EQ(problems_of({kStages4, "parallel.pipeline_partition=[2, 1, 0, 0]"}, 3), "");
  EXPECT_EQ(problems_of({kStages4}, 3),
            "--set: more pipeline stages than blocks (expected at most 3 blocks, got 4) at "
            "parallel.pipeline_parallel_degree; try parallel.pipeline_parallel_degree: 3 or less");
  EXPECT_EQ(problems_of({kStages4, kInterleaved, "parallel.pipeline_virtual_stages=4"}, 12),
            "--set: more model chunks than blocks (expected at most 12 blocks, got 4 stages of 4 = 16) at "
            "parallel.pipeline_virtual_stages; try parallel.pipeline_virtual_stages: 3");
  EXPECT_NE(problems_of({kStages4, kInterleaved}, 6).find("try parallel.pipeline_schedule: 1f1b"), std::string::npos);
  EXPECT_EQ(problems_of({kStages4, "parallel.pipeline_virtual_stages=2"}, 32),
            "--set: only an interleaved schedule has virtual stages (expected 1, or parallel.pipeline_schedule: "
            "interleaved, got 2) at parallel.pipeline_virtual_stages; try parallel.pipeline_schedule: interleaved, or "
            "removing parallel.pipeline_virtual_stages");
  EXPECT_EQ(problems_of({kStages4, kInterleaved, "parallel.pipeline_virtual_stages=1"}, 32),
            "--set: an interleaved schedule with one model chunk a stage (expected at least 2, got 1) at "
            "parallel.pipeline_virtual_stages; try parallel.pipeline_virtual_stages: 2, or "
            "parallel.pipeline_schedule: 1f1b");
  EXPECT_EQ(problems_of({kStages4, "parallel.pipeline_partition=[3*8]"}, 32),
            "--set: list length differs from the number of model chunks (expected 4 entries, one for each stage, got "
            "[3*8]) at parallel.pipeline_partition; try parallel.pipeline_partition: auto, or [4*8]");
  EXPECT_EQ(problems_of({kStages4, kInterleaved, "parallel.pipeline_partition=[4*8]"}, 32),
            "--set: list length differs from the number of model chunks (expected 8 entries: 4 stages of 2 model "
            "chunks, got [4*8]) at parallel.pipeline_partition; try parallel.pipeline_partition: auto, or [8*4]");
  EXPECT_EQ(problems_of({kStages4, "parallel.pipeline_partition=[9, 8, 8, 8]"}, 32),
            "--set: the blocks of the stages are not those of the model (expected a sum of 32 blocks, got [9,3*8]: 33) "
            "at parallel.pipeline_partition; try parallel.pipeline_partition: auto, or [4*8]");
  const std::vector<std::string> empty = {"parallel.pipeline_parallel_degree=2", kInterleaved,
                                          "parallel.pipeline_partition=[2, 0, 0, 2]"};
  EXPECT_EQ(problems_of(empty, 4),
            "--set: model chunks without a block on all stages in turn (expected a block in one of each 2 consecutive "
            "model chunks, got [2,2*0,2]) at parallel.pipeline_partition; try parallel.pipeline_partition: auto, or "
            "[4*1]");
}

// Not a product of 0, by which ranks would be divided.
TEST(PipelineForm, DegreesMayHaveAProductThatIsTooLarge) {
  const Recipe recipe = recipe_of({"parallel.pipeline_parallel_degree=65536", "parallel.tensor_parallel_degree=65536"});
  Problems problems;
  check_layout(recipe, 8, problems);
  EXPECT_NE(problems.lines().find("ranks do not divide by the degrees"), std::string::npos) << problems.lines();
  EXPECT_GT(default_ranks(recipe, DeviceChoice::cpu), 0);
}

}  // namespace pipeline_form_test
}  // namespace hawser
