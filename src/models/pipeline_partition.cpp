#include "models/pipeline_partition.h"

#include <algorithm>

namespace hawser::models {

void check_partition(const Model& model, const PipelinePartition& partition) {
  HAWSER_CHECK(partition.stages >= 1, partition.stages, " pipeline stages");
  HAWSER_CHECK(partition.model_chunks() % partition.stages == 0, partition.model_chunks(), " model chunks over ",
               partition.stages, " pipeline stages");
  if (partition.ends.empty()) return;
  HAWSER_CHECK(
      std::ranges::is_sorted(partition.ends) && partition.ends.front() >= 0 && partition.ends.back() == model.blocks(),
      "pipeline model chunks that do not end with the model's ", model.blocks(), " blocks");
}

LayerRange layers_of(const Model& model, const PipelinePartition& partition, int model_chunk) {
  if (partition.ends.empty()) return {0, model.layers()};
  // The first layer of a block.
  const auto first_layer = [&](int block) {
    int layer = 0;
    while (layer < model.layers() && model.block_of(layer) < block) ++layer;
    return layer;
  };
  const auto c = static_cast<std::size_t>(model_chunk);
  return {first_layer(c == 0 ? 0 : partition.ends[c - 1]), first_layer(partition.ends[c])};
}

std::vector<int> PipelinePartition::chunks_of(int stage) const {
  std::vector<int> out;
  for (int model_chunk = stage; model_chunk < model_chunks(); model_chunk += stages) out.push_back(model_chunk);
  return out;
}

std::vector<LayerRange> layers_of_stage(const Model& model, const PipelinePartition& partition, int stage) {
  std::vector<LayerRange> out;
  for (const int model_chunk : partition.chunks_of(stage)) out.push_back(layers_of(model, partition, model_chunk));
  return out;
}

std::vector<std::vector<int>> flat_stages(const Model& model, const PipelinePartition& partition) {
  check_partition(model, partition);
  std::vector<std::vector<int>> stages(model.flats().size());
  const auto add = [&](const std::vector<ParamIndex>& places, int model_chunk) {
    for (const ParamIndex& place : places) {
      stages[static_cast<std::size_t>(place.flat)].push_back(partition.stage_of(model_chunk));
    }
  };
  add(model.embedding_params(), 0);
  for (int model_chunk = 0; model_chunk < partition.model_chunks(); ++model_chunk) {
    const LayerRange layers = layers_of(model, partition, model_chunk);
    for (int layer = layers.begin; layer < layers.end; ++layer) add(model.layer_params(layer), model_chunk);
  }
  add(model.head_params(), partition.model_chunks() - 1);
  for (std::vector<int>& of : stages) {
    std::ranges::sort(of);
    const auto [first, last] = std::ranges::unique(of);
    of.erase(first, last);
  }
  return stages;
}

std::vector<std::vector<int>> tied_stages(const Model& model, const PipelinePartition& partition) {
  std::vector<std::vector<int>> tied;
  for (const std::vector<int>& stages : flat_stages(model, partition)) {
    if (stages.size() > 1 && std::ranges::find(tied, stages) == tied.end()) tied.push_back(stages);
  }
  return tied;
}

}  // namespace hawser::models
