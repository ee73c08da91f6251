// The step as data: a list of rows, each on one stream, with the rows it waits for.
//
// Rows are written by parallel/ and step/, run by step/'s executor, drawn by report/. A row says what is done to which
// layer, unit and micro-batch, never how; the executor knows how, on any device. Rows start in list order on the host;
// on the device a row starts when the earlier rows of its stream and all rows of `after` have ended.
#pragma once

#include <string>
#include <vector>

namespace hawser::program {

enum class Op {
  begin_step,       // step record to the device, loss sum to zero
  load_batch,       // micro-batch to the device
  gather,           // a unit's shards to its whole flat buffer
  embed,            // ids to the first activations
  forward,          // one layer
  loss,             // head: loss only
  logits,           // head: the logits of the chosen rows, to the host
  loss_gradient,    // head: loss and the gradient of its input
  recompute,        // one layer's saved tensors again
  backward,         // one layer
  backward_weight,  // one layer's delayed weight gradients
  embed_backward,
  reduce,             // a unit's gradients to shards, over shard x context
  reduce_replicas,    // a unit's gradient shard over replicas
  grad_norm_partial,  // a unit's part of the norm
  gradient_norm,      // global norm and clip coefficient
  parameter_norms,    // the norm of every parameter's gradient, for `eval --gradient-norms`
  update,             // a unit's optimizer step
  end_step,           // loss over all ranks; metrics to the host
};
const char* to_string(Op op);

enum class StreamId { compute, exchange, gather, reduce, count };
const char* to_string(StreamId stream);

struct Instruction {
  int id = 0;  // its index in the program
  Op op = Op::begin_step;
  StreamId stream = StreamId::compute;
  int unit = -1, layer = -1, micro_batch = -1;
  std::vector<int> gathered;  // forward, backward …: the gather rows whose buffers hold the weights, a unit each
  int input = -1;             // the row that made x (forward) or dy (backward)
  int partner = -1;           // recompute, backward, backward_weight: the layer's forward row
  std::vector<int> after;     // rows to wait for besides those earlier on the same stream
};

struct Program {
  std::vector<Instruction> instructions;
  int micro_batches = 1;

  // Appends a row, fills in its id and returns it.
  int add(Instruction instruction);
  std::string text() const;  // one line a row, for people and for tests
};

}  // namespace hawser::program
