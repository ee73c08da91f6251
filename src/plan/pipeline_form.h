// The pipeline of a recipe: the cuts of the model between stages, and the order of their passes.
//
//   parallel: {pipeline_parallel_degree: 4, pipeline_partition: [9, 8, 8, 7]}      # a model of 32 blocks
//
//   partition_of(recipe.parallel, 32)              // {.stages = 4, .ends = {9, 17, 25, 32}}
//   schedule_of(PipelineSchedule::gpipe, 4)        // the passes of each stage, for any number of micro-batches
//   pipeline_text(parallelism)                     // "4 pipeline stages by 1f1b, blocks [9,2*8,7]"
//
// A stage has one model chunk, or with `interleaved` several (virtual stages). The embedding is in the first model
// chunk and the head in the last one.
#pragma once

#include <string>
#include <vector>

#include "config/recipe.h"
#include "models/pipeline_partition.h"
#include "plan/layout.h"

namespace hawser::plan {

// Model chunks of a stage: parallel.pipeline_virtual_stages, or its default.
int virtual_stages_of(const ParallelRecipe& recipe);

// Model chunks of about equally many blocks: the first ones have one more where they do not divide.
models::PipelinePartition equal_partition(int stages, int virtual_stages, int blocks);

// parallel.pipeline_partition; auto is as equal_partition: Forecaster::with_partition() balances it. The keys have
// passed check_pipeline.
models::PipelinePartition partition_of(const ParallelRecipe& recipe, int blocks);

// Of each model chunk: parallel.pipeline_partition as a list.
std::vector<int> blocks_of(const models::PipelinePartition& partition);

Schedule schedule_of(PipelineSchedule schedule, int stages, int virtual_stages = 1);

// Problems of cuts that are not of this model, or not of as many model chunks, and of virtual stages that the schedule
// has not. With one stage the other keys have no effect.
void check_pipeline(const Recipe& recipe, int blocks, Problems& problems);

// "1f1b, blocks [9,8,8,7]": the schedule and the cuts of several stages.
std::string schedule_text(const Parallelism& parallelism);

// "4 pipeline stages by 1f1b, blocks [9,8,8,7]"; "" with one stage.
std::string pipeline_text(const Parallelism& parallelism);

}  // namespace hawser::plan
