// Choice of the cuts between pipeline stages for parallel.pipeline_partition: auto.
#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "config/config.h"
#include "plan/forecast.h"
#include "plan/pipeline_form.h"

namespace hawser::plan {

bool Forecaster::cuts_are_free(const Recipe& recipe) const {
  return recipe.parallel.pipeline_parallel_degree > 1 && recipe.parallel.pipeline_partition.empty() &&
         !choices_.parallelism;
}

ModelTimes Forecaster::times_without_stages(const Recipe& recipe, const Candidate& candidate) const {
  Candidate one_stage = candidate;
  one_stage.parallelism.partition = {};
  one_stage.parallelism.mesh.pipeline = 1;
  one_stage.parallelism.schedule = {.name = "", .passes = {}};
  const Recipe one = shortened(recipe, one_stage, 1);
  const auto model = models_.of(one_stage.parallelism, 0, model_.blocks());
  return model_times(*model, layout_of(one, one_stage, *model), target_, rate_scale());
}

std::vector<StageMemory> Forecaster::stage_memory(const Recipe& recipe, const Candidate& candidate) const {
  const Recipe few = shortened(recipe, candidate, searched_micro_batches(recipe, candidate));
  const std::optional<FewBlocks> found = few_blocks(few, candidate);
  return found ? found->memory : std::vector<StageMemory>{};
}

Forecaster::FreeCuts Forecaster::balanced_cuts(const Recipe& recipe, const Candidate& equal,
                                               bool within_capacity) const {
  const ParallelRecipe& parallel = recipe.parallel;
  const int stages = parallel.pipeline_parallel_degree, each = virtual_stages_of(parallel);
  Balance balance{.optimize = parallel.pipeline_optimize, .memory = {}, .capacity = static_cast<double>(capacity_)};
  if (within_capacity || balance.optimize == PipelineOptimize::memory) balance.memory = stage_memory(recipe, equal);
  if (balance.memory.empty()) balance.optimize = PipelineOptimize::speed;
  const Schedule& schedule = equal.parallelism.schedule;
  const int micro_batches = layout_of(recipe, equal).micro_batches;
  const ModelTimes times = times_without_stages(recipe, equal);
  const models::PipelinePartition cuts = balanced(schedule, stages, each, micro_batches, times, balance);
  const auto seconds = [&](const models::PipelinePartition& of) {
    return pipeline_seconds(schedule, of, micro_batches, times);
  };
  return {blocks_of(cuts), seconds(equal_partition(stages, each, model_.blocks())) / seconds(cuts) - 1};
}

Forecaster::FreeCuts Forecaster::cuts_of(const Recipe& recipe) const {
  const ParallelRecipe& parallel = recipe.parallel;
  // Other settings change the balance of time hardly, and those of sharding not at all.
  Recipe key = recipe;
  if (parallel.pipeline_optimize == PipelineOptimize::speed) {
    key.parallel.hybrid_shard_degree = 0;
    key.parallel.sharding = {};
    key.parallel.gradient_accumulation = {};
  }
  auto [found, is_new] = cuts_.try_emplace(recipe_json(key));
  if (is_new) {
    Candidate equal = plan::candidate_of(recipe, parallelism_of(recipe, model_, world_), model_.blocks());
    // Policies are chosen later, so that the stages fit: the memory is that of the one that needs the least.
    if (is_automatic(recipe.memory) && parallel.pipeline_optimize == PipelineOptimize::memory) {
      for (BlockPolicy& block : equal.blocks) block.checkpointing = Checkpointing::block;
    }
    found->second = balanced_cuts(recipe, equal, false);
  }
  return found->second;
}

Recipe Forecaster::with_partition(const Recipe& recipe) const {
  const ParallelRecipe& parallel = recipe.parallel;
  const int model_chunks = parallel.pipeline_parallel_degree * virtual_stages_of(parallel);
  if (!cuts_are_free(recipe) || model_chunks > model_.blocks()) return recipe;
  Recipe out = recipe;
  out.parallel.pipeline_partition = cuts_of(recipe).blocks;
  return out;
}

Forecast Forecaster::fitted(const Recipe& recipe, Forecast forecast) const {
  if (!cuts_are_free(recipe)) return forecast;
  const Recipe of_form = with_context_form(recipe);
  forecast.equal_cuts = cuts_of(of_form).equal;
  if (forecast.needed() <= forecast.capacity) return forecast;
  const FreeCuts smaller = balanced_cuts(of_form, forecast.candidate, true);
  Recipe other = of_form;
  other.parallel.pipeline_partition = smaller.blocks;
  Candidate candidate = forecast.candidate;
  candidate.parallelism.partition = partition_of(other.parallel, model_.blocks());
  if (candidate.parallelism.partition == forecast.candidate.parallelism.partition) return forecast;
  Forecast moved = is_automatic(recipe.memory) ? choose(recipe, candidate) : complete(recipe, candidate);
  if (moved.needed() > moved.capacity) return forecast;
  moved.equal_cuts = smaller.equal;
  return moved;
}

}  // namespace hawser::plan
