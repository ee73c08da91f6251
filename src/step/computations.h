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

}  // namespace hawser::step
