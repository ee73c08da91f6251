// `Program`: the step as a list of instructions, each on one stream, with the instructions it waits for.
//
// parallel/ and step/ write it, the executor of step/ runs it, and report/ displays it. An instruction names the op,
// layer, unit and micro-batch; the executor implements it on any device. The host enqueues instructions in list order.
// On the device an instruction starts when the earlier instructions of its stream and all those in `after` have ended.
#pragma once

#include <string>
#include <vector>

namespace hawser::program {

enum class Op {
  begin_step,       // copies the step scalars to the device, zeroes the loss sum
  load_batch,       // copies a micro-batch to the device
  gather,           // all-gathers a unit's shards into its unsharded flat buffer
  embed,            // ids to the first activations
  forward,          // one layer
  loss,             // head: loss only
  logits,           // head: logits at logit_positions, copied to the host
  loss_gradient,    // head: loss and the gradient of its input
  recompute,        // recomputes one layer's saved tensors
  backward,         // one layer
  backward_weight,  // one layer's delayed weight gradients
  embed_backward,
  reduce,             // reduce-scatters a unit's gradients to shards, over shard x context
  reduce_replicas,    // all-reduces a unit's gradient shard over replicas
  grad_norm_partial,  // adds a unit's squared gradient norm
  gradient_norm,      // global norm and clip coefficient
  parameter_norms,    // the norm of every parameter's gradient, for `eval --gradient-norms`
  update,             // a unit's optimizer step
  end_step,           // all-reduces the loss; copies metrics to the host
};
const char* to_string(Op op);

enum class StreamId { compute, exchange, gather, reduce, count };
const char* to_string(StreamId stream);

struct Instruction {
  int id = 0;  // index in the program
  Op op = Op::begin_step;
  StreamId stream = StreamId::compute;
  int unit = -1, layer = -1, micro_batch = -1;
  std::vector<int> gathered;  // forward, backward …: the gather instructions whose buffers hold the weights, by unit
  int input = -1;             // the instruction that wrote x (forward) or dy (backward)
  int partner = -1;           // recompute, backward, backward_weight: the layer's forward instruction
  std::vector<int> after;     // instructions to wait for, besides earlier ones of the same stream
};

struct Program {
  std::vector<Instruction> instructions;
  int micro_batches = 1;

  // Appends an instruction, sets its id and returns it.
  int add(Instruction instruction);
  std::string text() const;  // one line per instruction, for users and tests
};

}  // namespace hawser::program
