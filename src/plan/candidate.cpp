#include "plan/candidate.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "nn/row_tiles.h"

namespace hawser::plan {

std::vector<step::Pass> Schedule::of_stage(const models::PipelinePartition& partition, int stage,
                                           int micro_batches) const {
  return passes ? passes(stage, micro_batches) : step::grouped_passes(micro_batches, group, partition, stage);
}

int Schedule::in_flight(int stages, int micro_batches) const {
  if (!passes) return std::clamp(group, 1, micro_batches);
  std::ptrdiff_t most = 1;
  for (int stage = 0; stage < stages; ++stage) {
    const std::vector<step::Pass> all = passes(stage, micro_batches);
    std::map<int, int> left;  // passes of each micro-batch
    for (const step::Pass& pass : all) ++left[pass.micro_batch];
    std::set<int> begun;
    for (const step::Pass& pass : all) {
      begun.insert(pass.micro_batch);
      most = std::max(most, std::ssize(begun));
      if (--left[pass.micro_batch] == 0) begun.erase(pass.micro_batch);
    }
  }
  return static_cast<int>(most);
}

Candidate candidate_of(const Recipe& recipe, Parallelism parallelism, int blocks) {
  Candidate out{.parallelism = std::move(parallelism)};
  const MemoryRecipe& memory = recipe.memory;
  if (memory.optimizer_offload.value_or(memory.offloaded_flats.value_or(0) > 0)) out.state = StatePlace::host;
  if (!memory.optimizer_offload) out.state_flats = memory.offloaded_flats;
  if (memory.weight_offload) out.frozen = out.weights = StatePlace::host;
  out.mlp_tile_rows = memory.mlp_tile_rows;
  for (int block = 0; block < blocks; ++block) {
    out.blocks.push_back(
        {.checkpointing = checkpointing_of(memory, block),
         .offload = memory.activation_offload.value_or(block < std::ssize(memory.offloaded_blocks) &&
                                                       memory.offloaded_blocks[static_cast<std::size_t>(block)]),
         .delay_weight_gradients = out.parallelism.schedule.delays_weights});
  }
  return out;
}

namespace {

// By pipeline stage.
std::vector<int> count_trainable_flats(const models::Model& model, const std::vector<std::vector<int>>& stages_of,
                                       int stages) {
  std::vector<int> out(static_cast<std::size_t>(stages));
  for (std::size_t f = 0; f < model.flats().size(); ++f) {
    if (model.flats()[f].spec().trainable) ++out[static_cast<std::size_t>(stages_of[f].front())];
  }
  return out;
}

}  // namespace

int trainable_flats(const models::Model& model, const models::PipelinePartition& partition) {
  return std::ranges::max(count_trainable_flats(model, models::flat_stages(model, partition), partition.stages));
}

bool takes_tiles(const models::Model& model) {
  for (int layer = 0; layer < model.layers(); ++layer) {
    if (nn::in_tiles(model.layer(layer), {.tile_rows = kMlpTileStep})) return true;
  }
  return false;
}

void apply(const Candidate& candidate, const models::Model& model, LayoutChoices& choices) {
  for (int layer = 0; layer < model.layers(); ++layer) {
    const BlockPolicy& block = candidate.blocks.at(static_cast<std::size_t>(model.block_of(layer)));
    nn::SavePolicy& policy = choices.policies[static_cast<std::size_t>(layer)];
    policy.checkpointing = block.checkpointing;
    policy.offload = block.offload;
    policy.tile_rows = candidate.mlp_tile_rows;
    policy.delay_weight_gradients = block.delay_weight_gradients && !nn::in_tiles(model.layer(layer), policy);
  }
  choices.host.state.clear();
  choices.host.weights.clear();
  const std::array places{candidate.state, candidate.frozen, candidate.weights};
  if (std::ranges::count(places, StatePlace::host) == 0) return;
  const models::PipelinePartition& partition = candidate.parallelism.partition;
  const std::vector<std::vector<int>> stages_of = models::flat_stages(model, partition);
  std::vector<int> left = count_trainable_flats(model, stages_of, partition.stages);  // this flat and those after it
  for (std::size_t f = 0; f < model.flats().size(); ++f) {
    const bool trains = model.flats()[f].spec().trainable;
    int& of_stage = left[static_cast<std::size_t>(stages_of[f].front())];
    const bool state = candidate.state == StatePlace::host && of_stage <= candidate.state_flats.value_or(of_stage);
    choices.host.state.push_back(trains ? state : candidate.frozen == StatePlace::host);
    choices.host.weights.push_back(trains && candidate.weights == StatePlace::host);
    of_stage -= trains ? 1 : 0;
  }
}

models::RankShare share_of(const Parallelism& parallelism, int rank) {
  return {.tensor = {.index = comm::coordinate_of(rank, parallelism.mesh).tensor, .count = parallelism.mesh.tensor},
          .modules = parallelism.tensor_modules,
          .sequence_parallel = parallelism.sequence_parallel};
}

std::shared_ptr<const models::Model> RankModels::of(const Parallelism& parallelism, int rank, int blocks) const {
  const models::RankShare share = share_of(parallelism, rank);
  const auto is_it = [&](const models::Model& model) { return model.share() == share && model.blocks() == blocks; };
  if (is_it(model_)) return {std::shared_ptr<const models::Model>(), &model_};
  const auto found = std::ranges::find_if(made_, [&](const auto& model) { return is_it(*model); });
  if (found != made_.end()) return *found;
  return made_.emplace_back(model_.on_rank(share, blocks));
}

}  // namespace hawser::plan
