// `PipelinePartition`: the blocks of a model over pipeline stages.
//
//   PipelinePartition{.stages = 2, .ends = {5, 8}}        // stage 0: embedding, blocks 0-4; stage 1: blocks 5-7, head
//   PipelinePartition{.stages = 2, .ends = {2, 4, 6, 8}}  // two model chunks a stage: stage 0 has blocks 0-1 and 4-5
//
// Source: GPipe (arXiv 1811.06965); model chunks, which are the virtual stages of Megatron-LM (arXiv 2104.04473).
#pragma once

#include <vector>

#include "models/model.h"

namespace hawser::models {

struct PipelinePartition {
  int stages = 1;
  // A model chunk is a run of blocks; this is the block after its last one, by model chunk. Model chunk c runs in
  // stage c % stages. The first also has the embedding, the last one the head. A model chunk may have no block. Empty:
  // one model chunk with all blocks.
  std::vector<int> ends = {};

  int model_chunks() const { return ends.empty() ? 1 : static_cast<int>(ends.size()); }
  int stage_of(int model_chunk) const { return model_chunk % stages; }
  std::vector<int> chunks_of(int stage) const;
  bool operator==(const PipelinePartition&) const = default;
};

// InternalError unless the model chunks are a multiple of the stages and have each block once, in order.
void check_partition(const Model& model, const PipelinePartition& partition);

LayerRange layers_of(const Model& model, const PipelinePartition& partition, int model_chunk);
// Of a stage, by model chunk.
std::vector<LayerRange> layers_of_stage(const Model& model, const PipelinePartition& partition, int stage);

// The stages that compute with a parameter of each flat, ascending, by flat. A flat of several stages (a tied
// embedding) is in the state of each of them.
std::vector<std::vector<int>> flat_stages(const Model& model, const PipelinePartition& partition);

// The different sets of two or more stages among them, in the order of their first flats: comm::MeshSizes::tied.
std::vector<std::vector<int>> tied_stages(const Model& model, const PipelinePartition& partition);

}  // namespace hawser::models
