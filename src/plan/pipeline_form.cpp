#include "plan/pipeline_form.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/text.h"
#include "base/units.h"
#include "config/config.h"
#include "step/pipeline_passes.h"

namespace hawser::plan {

int virtual_stages_of(const ParallelRecipe& recipe) {
  if (recipe.pipeline_virtual_stages > 0) return recipe.pipeline_virtual_stages;
  return recipe.pipeline_schedule == PipelineSchedule::interleaved ? 2 : 1;
}

models::PipelinePartition equal_partition(int stages, int virtual_stages, int blocks) {
  const int model_chunks = stages * virtual_stages;
  models::PipelinePartition out{.stages = stages};
  if (model_chunks == 1) return out;
  for (int c = 1; c <= model_chunks; ++c) out.ends.push_back(static_cast<int>(ceil_div(blocks * c, model_chunks)));
  return out;
}

models::PipelinePartition partition_of(const ParallelRecipe& recipe, int blocks) {
  const int stages = recipe.pipeline_parallel_degree;
  if (stages == 1) return {};
  if (recipe.pipeline_partition.empty()) return equal_partition(stages, virtual_stages_of(recipe), blocks);
  models::PipelinePartition out{.stages = stages};
  std::partial_sum(recipe.pipeline_partition.begin(), recipe.pipeline_partition.end(), std::back_inserter(out.ends));
  return out;
}

std::vector<int> blocks_of(const models::PipelinePartition& partition) {
  std::vector<int> out(partition.ends.size());
  std::adjacent_difference(partition.ends.begin(), partition.ends.end(), out.begin());
  return out;
}

Schedule schedule_of(PipelineSchedule schedule, int stages, int virtual_stages) {
  switch (schedule) {
    case PipelineSchedule::one_forward_one_backward:
      return {.name = "1f1b", .passes = [=](int stage, int micro_batches) {
                return step::one_forward_one_backward(stages, stage, micro_batches);
              }};
    case PipelineSchedule::gpipe:
      return {.name = "gpipe", .passes = {}, .group = std::numeric_limits<int>::max()};
    case PipelineSchedule::interleaved:
      return {.name = "interleaved", .passes = [=](int stage, int micro_batches) {
                return step::interleaved(stages, virtual_stages, stage, micro_batches);
              }};
    case PipelineSchedule::zero_bubble:
      return {.name = "zero_bubble",
              .passes =
                  [=](int stage, int micro_batches) {
                    return step::zero_bubble(stages, micro_batches)[static_cast<std::size_t>(stage)];
                  },
              .delays_weights = true};
  }
  return {};
}

namespace {

// As a recipe writes it: a list.
std::string list_text(const std::vector<int>& blocks) {
  ParallelRecipe recipe;
  recipe.pipeline_partition = blocks;
  return partition_text(recipe);
}

// Virtual stages that the schedule has not.
bool check_virtual_stages(const Recipe& recipe, Problems& problems) {
  const ParallelRecipe& parallel = recipe.parallel;
  const bool interleaves = parallel.pipeline_schedule == PipelineSchedule::interleaved;
  const int given = parallel.pipeline_virtual_stages;
  const char* key = "parallel.pipeline_virtual_stages";
  Problem problem = problem_at(recipe, key);
  problem.got = cat(given);
  if (interleaves && given == 1) {
    problem.what = "an interleaved schedule with one model chunk a stage";
    problem.expected = "at least 2";
    problem.hint = cat(key, ": 2, or parallel.pipeline_schedule: 1f1b");
  } else if (!interleaves && given > 1) {
    problem.what = "only an interleaved schedule has virtual stages";
    problem.expected = "1, or parallel.pipeline_schedule: interleaved";
    problem.hint = cat("parallel.pipeline_schedule: interleaved, or removing ", key);
  } else {
    return true;
  }
  problems.add(std::move(problem));
  return false;
}

}  // namespace

void check_pipeline(const Recipe& recipe, int blocks, Problems& problems) {
  const ParallelRecipe& parallel = recipe.parallel;
  const int stages = parallel.pipeline_parallel_degree;
  if (stages == 1 || !check_virtual_stages(recipe, problems)) return;
  const int each = virtual_stages_of(parallel), model_chunks = stages * each;
  const std::vector<int>& list = parallel.pipeline_partition;
  if (list.empty() && model_chunks > blocks) {
    const bool of_stages = stages > blocks;
    Problem problem =
        problem_at(recipe, of_stages ? "parallel.pipeline_parallel_degree" : "parallel.pipeline_virtual_stages");
    problem.what = of_stages ? "more pipeline stages than blocks" : "more model chunks than blocks";
    problem.expected = cat("at most ", plural(blocks, "block"));
    problem.got = of_stages ? cat(stages) : cat(stages, " stages of ", each, " = ", model_chunks);
    const bool fewer = !of_stages && blocks / stages > 1;
    problem.hint = of_stages ? cat("parallel.pipeline_parallel_degree: ", blocks, " or less")
                   : fewer   ? cat("parallel.pipeline_virtual_stages: ", blocks / stages)
                             : "parallel.pipeline_schedule: 1f1b";
    return problems.add(std::move(problem));
  }
  if (list.empty()) return;
  const std::string key = "parallel.pipeline_partition";
  Problem problem = problem_at(recipe, key);
  problem.got = partition_text(parallel);
  problem.hint = cat(key, ": auto");
  if (model_chunks <= blocks) problem.hint += ", or " + list_text(blocks_of(equal_partition(stages, each, blocks)));
  if (std::ssize(list) != model_chunks) {
    problem.what = "list length differs from the number of model chunks";
    problem.expected = each == 1 ? cat(stages, " entries, one for each stage")
                                 : cat(model_chunks, " entries: ", stages, " stages of ", each, " model chunks");
    return problems.add(std::move(problem));
  }
  // Nothing would separate the messages of a stage that passes a micro-batch to itself.
  const auto none = [](int of_chunk) { return of_chunk == 0; };
  for (std::size_t first = 0; each > 1 && first + static_cast<std::size_t>(stages) <= list.size(); ++first) {
    const auto begin = list.begin() + static_cast<std::ptrdiff_t>(first);
    if (!std::all_of(begin, begin + stages, none)) continue;
    problem.what = "model chunks without a block on all stages in turn";
    problem.expected = cat("a block in one of each ", stages, " consecutive model chunks");
    return problems.add(std::move(problem));
  }
  const std::int64_t sum = std::accumulate(list.begin(), list.end(), std::int64_t{0});
  if (sum == blocks) return;
  problem.what = "the blocks of the stages are not those of the model";
  problem.expected = cat("a sum of ", plural(blocks, "block"));
  problem.got = cat(problem.got, ": ", sum);
  problems.add(std::move(problem));
}

std::string schedule_text(const Parallelism& parallelism) {
  const models::PipelinePartition& partition = parallelism.partition;
  const int each = partition.model_chunks() / partition.stages;
  return cat(parallelism.schedule.name, each > 1 ? cat(" with ", each, " model chunks a stage") : "", ", blocks ",
             list_text(blocks_of(partition)));
}

std::string pipeline_text(const Parallelism& parallelism) {
  if (parallelism.partition.stages == 1) return "";
  return cat(parallelism.partition.stages, " pipeline stages by ", schedule_text(parallelism));
}

}  // namespace hawser::plan
