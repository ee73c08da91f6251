// `make_program`: the instructions of a step on one pipeline stage, in the order of its passes (step/pass.h).
//
// parallel/data_shard adds gathers and reductions. Activations and gradients are received one pass before they are
// used, and sent as soon as they are complete. Forward runs at most `offload_window` layers
// ahead of the copies to the host, and tensors are loaded back that many layers before backward needs them. The
// gradient of a flat that several stages hold is summed over them; the first of them counts it in the norm. An update
// of several phases waits for what the ranks exchange after each; the first phase of the next such flat runs meanwhile,
// so that the exchanges of at most two flats are live. State in host memory is copied to the device before a flat's
// update and back after it; while one flat is updated, the next one's state is copied, so that those of at most two are
// on the device. Weights that are in host memory from step to step are not gathered after an update: each use loads
// them.
#pragma once

#include <array>

#include "models/model.h"
#include "nn/layer.h"
#include "optim/optimizer.h"
#include "parallel/data_shard/shard_instructions.h"
#include "program/program.h"
#include "step/host_placement.h"
#include "step/pass.h"

namespace hawser::step {

enum class Purpose {
  train,           // gradients, clip, update
  gradient_norms,  // gradients, and the norm of each parameter's gradient
  // The same of a part of a larger batch: the auxiliary loss and its gradient are those of
  // StepInput::auxiliary_statistics, not of each micro-batch's own statistics.
  gradient_norms_of_part,
  loss,    // forward only
  logits,  // forward only, to the logits at logit_positions
};
constexpr bool forward_only(Purpose purpose) {
  return purpose == Purpose::loss || purpose == Purpose::logits;
}
constexpr bool measures_gradients(Purpose purpose) {
  return purpose == Purpose::gradient_norms || purpose == Purpose::gradient_norms_of_part;
}

// Two training steps with the same inputs and weights, whose gradients are compared.
enum class Verification {
  none,
  reference,   // x and dy of Linears are not quantized; the gradient is kept in the state. Given StepInput::skip
  comparison,  // its gradient is compared with the one that was kept
};

struct ScheduleOptions {
  Purpose purpose = Purpose::train;
  int micro_batches = 1;
  models::PipelinePartition partition;
  int stage = 0;
  std::vector<Pass> passes;              // of the stage
  std::vector<nn::SavePolicy> policies;  // by layer
  int offload_window = 1;                // layers whose offloaded tensors are on the device besides the running one's
  parallel::ShardOptions shard;
  // By Domain: no other rank of this copy of the model has elements of its flats. So they are not sharded, although
  // those of another domain are.
  std::array<bool, kDomains> unsharded = {};
  // Tensor-parallel ranks. Of a parameter that they do not slice each computes the whole gradient, unless it is
  // FlatSpec::partial_gradient: the sum over them is then divided by their number.
  int copies = 1;
  const optim::Optimizer* optimizer = nullptr;  // whose phases updates have. Without it they have one phase.
  HostPlacement host;
  Verification verification = Verification::none;
  bool quantizes = false;  // there is a quantizer (nn/quantizer.h): scales and quantized weights follow the updates
};

// Whether a flat's weights are quantized after each update (nn/quantizer.h).
bool quantizes_weights(const nn::FlatSpec& spec);
// Whether they are quantized once, as they are loaded, and kept in that form alone: frozen weights in E4M3 with one
// scale, and those in NF4.
bool quantizes_loaded_weights(const nn::FlatSpec& spec);

program::Program make_program(const models::Model& model, const ScheduleOptions& options);

}  // namespace hawser::step
