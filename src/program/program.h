// `Program`: one step as a list of instructions. Each instruction runs on one stream and lists the instructions that it
// waits for.
//
// Example: forward of two layers of a sharded model, with prefetch 1. Layers 0 and 1 are a block: one unit, and so one
// gather. `gather` of the next unit runs while the block computes:
//
//   id 3  gather   flat 1   stream gather
//   id 4  gather   flat 2   stream gather
//   id 5  forward  layer 0  stream compute   gathered {3}   after {3}
//   id 6  forward  layer 1  stream compute   gathered {3}   after {3}, x = 5
//   id 7  gather   flat 3   stream gather    after {6}      its buffer is that of flat 1, which layer 1 read last
//
// parallel/ and step/ write the program, and the executor of step/ runs it on any device. The host enqueues the
// instructions in list order. On the device, an instruction starts when all earlier instructions of its stream and all
// instructions in its `after` have ended.
#pragma once

#include <string>
#include <vector>

#include "base/direction.h"

namespace hawser::program {

// `gather` and `reduce` communicate among the ranks of mesh.shard() of the flat's domain (comm/mesh.h), which together
// hold one copy of the flat's parameters and moments.
enum class Op {
  begin_step,       // copies the step's scalars to the device and zeroes its results
  load_batch,       // copies a micro-batch's index tensors to the device
  load_weights,     // copies a flat's weights, which are in host memory, to the device before a use
  gather,           // all-gathers a flat's weight shards into one unsharded buffer
  embed,            // token embedding: the first layer's input
  forward,          // forward of one layer
  auxiliary_loss,   // sums all layers' statistics over ranks and stages; the loss that layers add, and its factors
  loss,             // head: loss only
  logits,           // head: logits at logit_positions, copied to the host
  loss_gradient,    // head: loss, gradient of its input and gradients of its weights
  recompute,        // computes the tensors of one layer that backward reads and forward did not save
  backward,         // backward of one layer
  backward_weight,  // one layer's weight gradients, where the policy computes them after backward
  embed_backward,   // gradient of the embedding table
  send,             // sends an activation, or its gradient, to the stage of the next model chunk, or of the one before
  receive,          // receives it
  offload,          // copies what a layer's forward saved, and its input, to host memory
  load,             // copies it back; its buffers may be elsewhere than those of forward
  reduce,           // reduce-scatters a flat's gradient into the ranks' shards of it
  reduce_replicas,  // all-reduces a flat's gradient shard over the ranks that hold the same shard
  reduce_tied,      // all-reduces a flat's gradient shard over the pipeline stages that hold the flat
  divide_copies,    // divides a flat's gradient shard by the number of ranks whose gradients are equal copies
  grad_norm_partial,  // adds the squares of a flat's gradient shard to this rank's sum
  gradient_norm,      // all-reduces the ranks' sums of squares; computes the global norm and the clip coefficient
  parameter_norms,    // the norm of every parameter's gradient, for `eval --gradient-norms` and verified steps
  update,             // a phase of the optimizer's step on this rank's shard of a flat
  optimizer_sum,      // after a phase of an update: all-reduces the sums of the ranks of one copy of the model
  optimizer_gather,   // after a phase: all-gathers what the ranks wrote of their shards
  optimizer_scatter,  // after a phase: reduce-scatters what the ranks wrote of the flat into shards
  state_in,           // copies a flat's state in host memory (step/state.h) to the device, for its update
  state_out,          // copies it back, and the weights as layers read them, if these are in host memory
  scale_update,  // new scales: all-reduces the maxima of weights (nn/quantizer.h); gradient_norm has those of x and dy
  quantize_weights,  // rounds this rank's shard of a flat to what layers read, with the new scales
  gather_updated,    // all-gathers a flat's updated shards into the weights that every rank keeps (ZeRO-1, ZeRO-2)
  end_step,          // all-reduces the loss, if there is one, and copies the results to the host
};
const char* to_string(Op op);

// exchange: communication inside layers (nn/seams.h): context, tensor and expert parallelism. gather: Op::gather,
// gather_updated, optimizer_gather. reduce: Op::reduce, reduce_replicas, reduce_tied, optimizer_scatter. send, receive:
// the op. auxiliary: auxiliary_loss. copy_out: offload, state_out. copy_in: load, state_in, load_weights.
// divide_copies: the stream of what it follows. compute: everything else. count: the number of streams.
enum class StreamId { compute, exchange, gather, reduce, send, receive, auxiliary, copy_out, copy_in, count };
const char* to_string(StreamId stream);

// Which form of a flat's matrices a computation reads (nn::FlatSpec::transposed); `rows` for all other flats. A gather
// of both leaves two buffers.
enum class WeightForm { rows, transposed, both };
const char* to_string(WeightForm form);

struct Instruction {
  int id = 0;  // index in the program
  Op op = Op::begin_step;
  StreamId stream = StreamId::compute;
  // Numbers that the op does not use are -1, here and below. `flat` indexes models::Model::flats().
  int flat = -1, layer = -1, micro_batch = -1;
  int phase = 0;  // update, optimizer_*: index in optim::Optimizer::phases()
  // For an op that reads weights: ids of the gathers or load_weights whose buffers hold them. There is one for each
  // flat of the units that the op reads. Consecutive ops share gathers: if the list of the previous such op has every
  // flat that this op reads, in its form, this op has the same list, which may have more flats. The executor looks a
  // flat up in it. It is empty if the weights are neither sharded nor loaded.
  std::vector<int> gathered;
  WeightForm form = WeightForm::rows;  // gather, load_weights: what it leaves
  bool shard = false;                  // load_weights: only this rank's shard, which a gather completes
  // Operands: ids of the instructions that own the buffers.
  int x = -1;  // the input of a layer, in all of its passes, or of the head
  // forward, backward: the residual, or its gradient (nn::Layer). recompute: the residual, if the layer's output is
  // recomputed, too.
  int residual = -1;
  int dy = -1;     // the backward ops: the gradient of the output
  int saved = -1;  // the passes of a layer, offload, load: its saved tensors. Itself if it is -1
  // state_in: itself. update, state_out, quantize_weights: the state_in that owns the buffers of the flat's state.
  // gather: the load_weights that owns the buffer of the shard. For each of them it is -1 if state or weights are on
  // the device.
  int staged = -1;
  // state_in: the master weights without the optimizer's slots. state_out: the weights as layers read them alone.
  bool weights_only = false;
  // send, receive: between model chunk `boundary` and the next one (models::PipelinePartition); the input
  // of that one, or its gradient.
  int boundary = -1;
  Direction direction = Direction::forward;
  int tied = -1;           // reduce_tied: index of comm::Mesh::tied()
  std::vector<int> after;  // ids of instructions to wait for, besides earlier ones of the same stream
};

struct Program {
  std::vector<Instruction> instructions;
  int micro_batches = 1;

  // Appends the instruction and sets its id; returns the id.
  int add(Instruction instruction);
  std::string text() const;  // one line per instruction, for users and tests
};

}  // namespace hawser::program
