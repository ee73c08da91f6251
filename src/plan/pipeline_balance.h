// Cuts between pipeline stages that make a step short: parallel.pipeline_partition: auto.
//
//   const ModelTimes times = model_times(model, layout, target, scale);  // of a micro-batch, in each part of the model
//   const models::PipelinePartition cuts = balanced(schedule, 4, 1, micro_batches, times);  // {8, 17, 26, 32}
//   pipeline_seconds(schedule, cuts, micro_batches, times);              // of a step, without what follows its passes
//
// The head counts like one or two blocks, and the embedding like none, so that equal cuts make the others wait for the
// last stage.
#pragma once

#include <functional>
#include <vector>

#include "models/pipeline_partition.h"
#include "plan/layout.h"
#include "plan/target.h"

namespace hawser::plan {

// Seconds of one micro-batch. Backward includes what is recomputed, and the gradients of weights unless they are
// delayed.
struct PassTimes {
  double forward = 0, backward = 0, weights = 0;
  double all() const { return forward + backward + weights; }
  PassTimes& operator+=(const PassTimes& other);
};

struct ModelTimes {
  std::vector<PassTimes> blocks;
  PassTimes embedding, head;  // the head's gradients are in its forward pass (step/pass.h)
};

// Predicted on the target, as step_time() predicts it: the work of the compute stream, its collectives included.
// `layout`: of a run without pipeline stages.
ModelTimes model_times(const models::Model& model, const Layout& layout, const Target& target, double rate_scale);

// By model chunk.
std::vector<PassTimes> chunk_times(const models::PipelinePartition& partition, const ModelTimes& times);

// Each stage runs its passes in order, and a pass starts when its input is there; messages take no time.
double pipeline_seconds(const Schedule& schedule, const models::PipelinePartition& partition, int micro_batches,
                        const ModelTimes& times);

// Bytes that each stage needs, as far as they depend on its blocks: base + per_block x blocks.
struct StageMemory {
  double base = 0, per_block = 0;
};

// What the cuts minimise. `memory`: by stage, or empty: not looked at.
struct Balance {
  PipelineOptimize optimize = PipelineOptimize::speed;
  std::vector<StageMemory> memory;
  double capacity = 0;  // speed: stages need at most this where any cuts that were found allow it
};

// The best cuts that searches from model chunks of equal time, and of equally many blocks, found; at least one block in
// each model chunk. The model has at least as many blocks.
models::PipelinePartition balanced(const Schedule& schedule, int stages, int virtual_stages, int micro_batches,
                                   const ModelTimes& times, const Balance& balance = {});

}  // namespace hawser::plan
