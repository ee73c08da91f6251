// `list_computations`: the computations of a stage's passes in order, with their operands, the weights that they read
// and the gradients that they add to. parallel/data_shard writes them into a program.
#pragma once

#include "parallel/data_shard/shard_instructions.h"
#include "step/schedule.h"

namespace hawser::step {

// InternalError if a pass is missing, twice, or before one whose result it needs on this stage. A pass of weight
// gradients is required if a layer of the model chunk delays them, and otherwise allowed: it then has no computation.
// The backward pass of a model chunk waits for the send of the model chunk's output, whose buffer is then free.
std::vector<parallel::Computation> list_computations(const models::Model& model, const ScheduleOptions& options);

// By layer: the layer whose recompute writes its input again, the one before it in a serial block, if the policies of
// both say so (SavePolicy::recomputes_output) and one model chunk has the backward of both. -1: the input is kept.
std::vector<int> writers_of_inputs(const models::Model& model, const models::PipelinePartition& partition,
                                   const std::vector<nn::SavePolicy>& policies);

}  // namespace hawser::step
