// `Pass`: a unit of a schedule: forward, backward or delayed weight gradients of one micro-batch through one model
// chunk (models::PipelinePartition). A schedule is the list of a stage's passes, in any order that
// plan::Schedule allows. Model chunk c is on stage c % stages, as in interleaved 1F1B. ZB-V and DualPipe place
// model chunks otherwise, which PipelinePartition and the lanes of the mesh cannot say.
//
// The head is in the last model chunk's forward pass, with the gradient of its input and of its weights; the
// embedding's gradient is in the first model chunk's backward pass.
//
//   GPipe            F0 F1 F2 B0 B1 B2
//   1F1B, stage 0    F0 F1 B0 F2 B1 B2
//   ZB-H1            ... B0 W0 ...: weight gradients apart, where the policy delays them (SavePolicy)
#pragma once

#include <vector>

#include "models/pipeline_partition.h"
#include "program/program.h"

namespace hawser::step {

struct Pass {
  enum class Kind { forward, backward, weight_gradients };
  Kind kind = Kind::forward;
  int micro_batch = 0;
  int model_chunk = 0;  // one of the stage's
  bool operator==(const Pass&) const = default;
};

// Groups of `in_flight` micro-batches, forward of all before backward of the first. Also right for several stages,
// which then wait for each other most of the time.
std::vector<Pass> grouped_passes(int micro_batches, int in_flight, const models::PipelinePartition& partition,
                                 int stage);

// Of forward-only programs: each stage is idle for stages - 1 passes. With virtual stages, micro-batches pass
// through each model chunk in groups of as many as there are stages.
std::vector<Pass> forward_passes(int micro_batches, const models::PipelinePartition& partition, int stage);

}  // namespace hawser::step
