// `make_program`: the instructions of a step, in the order of forward, recompute and backward over layers and
// micro-batches.
//
// Without pipeline stages a step runs its micro-batches one after another. `in_flight` interleaves that many: forward
// of all before backward of the first, as pipeline schedules do. parallel/data_shard adds gathers and reductions.
// An update of several phases waits for what the ranks exchange after each; the first phase of the next such flat runs
// meanwhile, so that the exchanges of at most two flats are live.
#pragma once

#include <array>

#include "models/model.h"
#include "nn/layer.h"
#include "optim/optimizer.h"
#include "parallel/data_shard/shard_instructions.h"
#include "program/program.h"

namespace hawser::step {

enum class Purpose {
  train,           // gradients, clip, update
  gradient_norms,  // gradients, and the norm of each parameter's gradient
  loss,            // forward only
  logits,          // forward only, to the logits at logit_positions
};
constexpr bool forward_only(Purpose purpose) {
  return purpose == Purpose::loss || purpose == Purpose::logits;
}

struct ScheduleOptions {
  Purpose purpose = Purpose::train;
  int micro_batches = 1;
  int in_flight = 1;
  std::vector<nn::SavePolicy> policies;  // by layer
  parallel::ShardOptions shard;
  // By Domain: no other rank of this copy of the model has elements of its flats. So they are not sharded, although
  // those of another domain are.
  std::array<bool, kDomains> unsharded = {};
  // Tensor-parallel ranks without sequence parallelism: each computes the whole gradient of a parameter that they do
  // not slice.
  int copies = 1;
  const optim::Optimizer* optimizer = nullptr;  // whose phases updates have; null: one phase
  bool quantizes = false;  // there is a quantizer (nn/quantizer.h): scales and quantized weights follow the updates
};

// Whether a flat's weights are quantized after each update (nn/quantizer.h).
bool quantizes_weights(const nn::FlatSpec& spec);

program::Program make_program(const models::Model& model, const ScheduleOptions& options);

}  // namespace hawser::step
