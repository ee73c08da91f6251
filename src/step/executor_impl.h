// `Executor::Impl`: the handlers of a program's ops, and what they keep from step to step. Internal to step/.
//
//   enqueue(input)
//     run(instruction)        // for each of the program, in its order: calls the handler of its op
//       gather(instruction)   // e.g. of Op::gather
//         bound(instruction)  // the views that it works on. The first step finds them: bind()
//
// A handler enqueues work on the instruction's stream and returns. It has the name of its op, but where it serves
// several.
#pragma once

#include <set>
#include <utility>

#include "step/bound.h"
#include "step/executor.h"
#include "step/host_link.h"

namespace hawser::step {

class Executor::Impl {
 public:
  explicit Impl(ExecutorSetup setup);
  ~Impl();

  // Executor's functions of these names.
  StepOutput enqueue(const StepInput& input);
  void hold_updates(std::vector<Event> until) { held_ = std::move(until); }
  void synchronize();
  void check();
  Stream& compute_stream();
  std::int64_t staging_bytes() const { return link_.bytes(); }
  void set_on_instruction(std::function<void(const program::Instruction&)> on_instruction) {
    setup_.on_instruction = std::move(on_instruction);
  }
  TensorView gradient_shard(int flat);

 private:
  class Context;
  class Sink;

  // The program. What it has, read once (executor.cpp).
  void read_program();
  bool trains() const { return trains_; }                // the program is of a training step
  bool has_gradients() const { return has_gradients_; }  // the program has a backward
  bool has_loss() const { return setup_.purpose != Purpose::logits; }
  // The auxiliary loss and its gradient are those of StepInput::auxiliary_statistics.
  bool auxiliary_given() const { return setup_.purpose == Purpose::gradient_norms_of_part; }
  bool holds(int flat) const { return setup_.state->flat(flat).held; }
  Stream& stream(program::StreamId id) { return *streams_[static_cast<std::size_t>(id)]; }
  void run(const program::Instruction& instruction, const StepInput& input, StepOutput& output);

  // Handlers of weights, activations, layers and the head (executor.cpp).
  void load_weights(const program::Instruction& instruction);
  void gather(const program::Instruction& instruction);
  void gather_updated(const program::Instruction& instruction);
  void run_layer(const program::Instruction& instruction);
  void run_embedding_or_head(const program::Instruction& instruction);
  void auxiliary_loss(const program::Instruction& instruction);
  void send_or_receive(const program::Instruction& instruction);
  void copy_buffers(const program::Instruction& instruction);

  // Handlers that exchange data with the host (executor_host.cpp): the step's input, and its output.
  void begin_step(const StepInput& input);
  void load_batch(const program::Instruction& instruction);
  void logits(const program::Instruction& instruction, StepOutput& output);
  void parameter_norms(const program::Instruction& instruction, StepOutput& output);
  void set_reference(const program::Instruction& instruction);
  void read_auxiliary_statistics(Stream& compute, StepOutput& output);
  void end_step(const program::Instruction& instruction, StepOutput& output);
  std::int64_t staged_bytes() const;  // bytes of pinned memory that one step's copies between host and device need
  Shape logits_shape() const;
  const HostBatch* host_batch(int micro_batch) const;  // of the step being enqueued; null on meta, or if negative
  const nn::BatchViews& batch_views(int micro_batch);
  TensorView batch_table(int micro_batch, std::size_t index);  // empty if it is not used

  // Handlers of gradients (executor_gradients.cpp): their reduction, their norm, and whether the step counts.
  void reduce(const program::Instruction& instruction);
  void reduce_replicas(const program::Instruction& instruction);
  void reduce_tied(const program::Instruction& instruction);
  void divide_copies(const program::Instruction& instruction);
  void grad_norm_partial(const program::Instruction& instruction);
  void gradient_norm(const program::Instruction& instruction);
  void refuse(const program::Instruction& instruction);
  TensorView workspace(const program::Instruction& instruction, std::int64_t bytes);  // a temp; empty for 0
  void all_reduce(const program::Instruction& instruction, comm::Group& group, const TensorView& data,
                  comm::Reduction reduction = comm::Reduction::sum, std::int64_t label = 0);
  BufferKey gradient_key(int flat, int micro_batch) const;
  DType reduce_dtype(int flat) const;
  TensorView flat_gradient(int flat, int micro_batch);

  // Handlers of updates (executor_update.cpp).
  void update(const program::Instruction& instruction);
  void state_out(const program::Instruction& instruction);
  void exchange_update(const program::Instruction& instruction);
  void wait_for_readers(int flat, Stream& stream);
  TensorView rounded_on_device(const program::Instruction& instruction);
  TensorView rounded_after(const program::Instruction& update);

  // Quantized Linears (executor_quantization.cpp).
  void scale_update(const program::Instruction& instruction);
  void quantize_weights(const program::Instruction& instruction);
  void judge(const program::Instruction& instruction);
  nn::Quantization quantization(const program::Instruction& instruction, nn::Site site, nn::Operand operand);

  // What an instruction works on. The first step finds it (executor_bind.cpp).
  Bound& bound(const program::Instruction& instruction);
  void bind(const program::Instruction& instruction, Bound& bound);
  void bind_weights(const program::Instruction& instruction, Bound& bound);
  void bind_gather(const program::Instruction& instruction, Bound& bound);
  void bind_copies(const program::Instruction& instruction, Bound& bound);
  void bind_update(const program::Instruction& instruction, Bound& bound);
  void bind_state_copies(const program::Instruction& instruction, Bound& bound);
  void bind_auxiliary(const program::Instruction& instruction, Bound& bound);
  void check_first_step(const program::Instruction& instruction) const;
  const std::vector<models::ParamIndex>& params_of(const program::Instruction& instruction) const;
  std::vector<nn::Scaled> weights_of(const program::Instruction& instruction);
  TensorView weight_shard(const program::Instruction& instruction);
  TensorView activation(int instruction);
  std::vector<nn::SavedSpec> saved_specs(int layer) const;
  nn::Saved saved_views(const program::Instruction& instruction);
  TensorView temp(const program::Instruction& instruction, DType dtype, const Shape& shape);
  const BoundGradient& gradient(const program::Instruction& instruction, const models::ParamIndex& place, int param);
  TensorView staged(const program::Instruction& instruction, int index, const TensorView& like);
  TensorView stored_on_device(const program::Instruction& instruction);
  optim::Exchanged exchanged(int flat, int phase);
  Domain exchanged_over(const nn::Flat& flat, const optim::Phase& phase) const;
  const nn::AuxiliaryViews& auxiliary_views(const program::Instruction& instruction);
  TensorView auxiliary_table(int micro_batch, int which, std::int64_t elements);
  std::vector<TensorView> of_other_stages(const TensorView& statistics) const;

  ExecutorSetup setup_;
  Streams own_streams_;
  Streams& streams_;
  HostLink link_;

  // Of the program.
  std::vector<bool> awaited_;                    // by instruction: one of another stream waits for it
  std::set<std::pair<int, int>> with_gradient_;  // (flat, index of the parameter): the program computes its gradient
  std::vector<bool> with_auxiliary_;             // by micro-batch: the program has its auxiliary_loss
  bool trains_ = false, has_gradients_ = false;

  // Between steps.
  Event step_end_;           // of the step enqueued last
  std::vector<Event> held_;  // hold_updates(): by flat, then the tables'. Without it no update waits

  // A device that does the work keeps what the first step has found, for all others. On meta it is forgotten after each
  // instruction, since large plans have many.
  bool keeps_bound_;
  bool first_step_ = true;
  std::vector<Bound> bound_;                                // by instruction; on meta one, of the current instruction
  std::vector<std::optional<nn::BatchViews>> batch_views_;  // by micro-batch

  // Of the step being enqueued, so far.
  const StepInput* input_ = nullptr;             // null between steps
  std::vector<Event> end_events_;                // by instruction: its end, if it is awaited
  std::vector<std::int64_t> site_elements_;      // SiteState::elements
  std::size_t temps_ = 0;                        // temps of the current instruction
  std::set<std::pair<BufferKey, int>> written_;  // gradients written: (buffer, index of the parameter)
  std::set<BufferKey> gaps_filled_;              // gradient buffers whose padding is zeroed
  bool norm_begun_ = false;                      // there was a grad_norm_partial
  bool auxiliary_begun_ = false;                 // there was an auxiliary_loss
};

}  // namespace hawser::step
