// `Executor`: runs a program on one device, as calls of layers, ops and collectives. On meta these calls record the
// trace from which plan/ plans the memory; on the CPU they are the reference for the other devices.
//
// The first step binds each instruction to what it works on (step/bound.h); later steps use it again.
//
// Enqueueing step n blocks the host only until step n - 3 has ended (step/host_link.h). No instruction makes the host
// read device memory: the compute stream copies a step's results to the host, which may read them once the step's end
// event is reached.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "comm/mesh.h"
#include "models/model.h"
#include "ops/loss_scale/loss_scale.h"
#include "program/program.h"
#include "step/batch.h"
#include "step/bound.h"
#include "step/buffers.h"
#include "step/host_link.h"
#include "step/schedule.h"
#include "step/state.h"

namespace hawser::step {

// The streams of a step, indexed by program::StreamId; null if the program does not use it. Executors may share them if
// their steps do not run concurrently.
using Streams = std::array<std::unique_ptr<Stream>, static_cast<std::size_t>(program::StreamId::count)>;
// Adds the streams that the program uses and `streams` has not.
void add_streams(Device& device, const program::Program& program, Streams& streams);

// The arguments of the constructor. What the pointers point to outlives the executor.
struct ExecutorSetup {
  const models::Model* model = nullptr;
  const program::Program* program = nullptr;
  Device* device = nullptr;
  Streams* streams = nullptr;  // null: the executor creates its own
  comm::Mesh* mesh = nullptr;
  ModelState* state = nullptr;
  Buffers* buffers = nullptr;
  nn::Seams seams;
  BatchBounds bounds;
  std::vector<nn::SavePolicy> policies;               // by layer; attention and MLP of a block are two layers
  std::shared_ptr<const optim::Optimizer> optimizer;  // needed by a program with updates
  double gradient_clip = 0;                           // maximum global L2 norm of the gradient; 0: no clipping
  ops::LossScaling loss_scaling;
  DType compute = DType::f32;
  // dtype of the unsharded gradient of one micro-batch: float32, or the dtype in `compute` above. `reduce`
  // reduce-scatters it into a shard that is always float32. Ignored if local_accumulation is set or parameters are not
  // sharded: unsharded gradients are then float32.
  DType reduce_dtype = DType::f32;
  std::uint64_t seed = 0;  // of the random numbers that layers draw
  int threads = 1;
  bool deterministic = false;  // attention gradients are bitwise repeatable (ops/attention/attention.h)
  // True: unsharded gradients accumulate over the step's micro-batches and are reduce-scattered once. False: those of
  // each micro-batch are reduce-scattered, and the shards accumulate.
  bool local_accumulation = false;
  bool keep_gradients = false;  // gradient shards stay valid after the step; needs a program with gradients
  bool keep_saved = true;       // false, for forward-only programs: no saved tensor outlives its instruction
  bool has_loss = true;         // false: a step without a loss, which sums nothing over the ranks
  int copies = 1;               // step::ScheduleOptions::copies
  // Purpose::gradient_norms_of_part: the auxiliary loss and its gradient are those of StepInput::auxiliary_statistics.
  bool auxiliary_given = false;
  // x and dy with LinearFormat::fp8_delayed are not quantized; their amaxes enter the history even if StepInput::skip
  // is set: a step before which there is none (nn::Quantizer::calibrates).
  bool calibrates = false;
  Verification verification = Verification::none;
  // A training step that a layer refuses runs again (OptimizerProgress::replay_step); until it has, later ones change
  // nothing. Equal in all kinds of steps of a session.
  bool runs_refused_again = false;
  // Called on the host before each instruction is enqueued. plan/ labels the items of the trace with the instruction;
  // train/ records it as the phase named in timeout messages, and labels timelines.
  std::function<void(const program::Instruction&)> on_instruction;
};

// The host's input of one step.
struct StepInput {
  StepRecord record;
  bool skip = false;  // true if no rank has a valid target: parameters and optimizer state are not updated
  std::vector<std::shared_ptr<const HostBatch>> batches;  // one per micro-batch; ignored on meta
  // Purpose::gradient_norms_of_part: statistics over more tokens than the step's, in the order of
  // StepOutput::auxiliary_statistics. The step's gradient is then its part of the gradient of the loss of all of them.
  std::vector<float> auxiliary_statistics = {};
};

// The outputs of a step. The device fills in all of them before `end` is reached, unless a stream has failed. On meta
// they are not filled in.
struct StepOutput {
  Event end;
  std::shared_ptr<StepResult> result = std::make_shared<StepResult>();
  std::shared_ptr<OptimizerProgress> progress = std::make_shared<OptimizerProgress>();  // of a program with updates
  // Host time at which `result` was filled in, which is when the device completed the step's last computation. The host
  // may look much later, and at several steps at once.
  std::shared_ptr<std::chrono::steady_clock::time_point> reached =
      std::make_shared<std::chrono::steady_clock::time_point>();
  // If measures_gradients(): the gradient norm of each tensor of models::hf_tensors(this rank's model), of which other
  // ranks may have slices; 0 if it is frozen. Other expert ranks have other tensors: engine::gradient_norms has all.
  // With Verification::reference those of the reference gradient, before clipping and times the loss scale, and with
  // Verification::comparison those of the difference.
  std::shared_ptr<std::vector<float>> parameter_norms;
  // [layers with an auxiliary loss, its statistics], of the layers of all pipeline stages, summed over the
  // micro-batches and the ranks with different tokens; null if there is none.
  std::shared_ptr<std::vector<float>> auxiliary_statistics;
  // Purpose::logits: of the last micro-batch, [BatchBounds::logit_positions, vocabulary], in all columns of the model.
  std::shared_ptr<std::vector<float>> logits;
};

class Executor {
 public:
  explicit Executor(ExecutorSetup setup);
  ~Executor();

  StepOutput enqueue(const StepInput& input);
  // In the next step, the instructions that write flat f's state wait for until[f], the end of concurrent work that
  // reads it (train/snapshot.h), and `scale_update` for until.back(), of work that reads ModelState::tables(). They are
  // `update`; `layer_update`; `state_out`, for what is in host memory; and `scale_update` for the scales.
  void hold_updates(std::vector<Event> until) { held_ = std::move(until); }
  // Blocks until all enqueued work has completed; rethrows any stream's error.
  void synchronize();
  // Rethrows any stream's error so far; does not wait.
  void check();
  Stream& compute_stream();
  std::int64_t staging_bytes() const { return link_.bytes(); }  // pinned host memory that the executor reserves
  void set_on_instruction(std::function<void(const program::Instruction&)> on_instruction) {
    setup_.on_instruction = std::move(on_instruction);
  }
  // This rank's shard of the gradient of a flat that its stage holds, float32 [FlatState::count], on the device: the
  // gradient of the mean loss of the global batch, summed over all ranks, before clipping. With keep_gradients it is
  // valid from synchronize() until the next step is enqueued.
  TensorView gradient_shard(int flat);

 private:
  class Context;
  class Sink;

  void run(const program::Instruction& instruction, const StepInput& input, StepOutput& output);
  void begin_step(const StepInput& input);
  void load_batch(const program::Instruction& instruction);
  void load_weights(const program::Instruction& instruction);
  void gather(const program::Instruction& instruction);
  void gather_updated(const program::Instruction& instruction);
  void run_layer(const program::Instruction& instruction);
  void run_embedding_or_head(const program::Instruction& instruction);
  void auxiliary_loss(const program::Instruction& instruction);
  void logits(const program::Instruction& instruction, StepOutput& output);
  void reduce(const program::Instruction& instruction);
  void reduce_replicas(const program::Instruction& instruction);
  void reduce_tied(const program::Instruction& instruction);
  void all_reduce_gradient(const program::Instruction& instruction, comm::Group& group);
  void send_or_receive(const program::Instruction& instruction);
  void copy_buffers(const program::Instruction& instruction);
  void divide_copies(const program::Instruction& instruction);
  void grad_norm_partial(const program::Instruction& instruction);
  bool holds(int flat) const { return setup_.state->flat(flat).held; }
  bool trains() const { return trains_; }                // the program has updates
  bool has_gradients() const { return has_gradients_; }  // the program has a backward
  void gradient_norm(const program::Instruction& instruction);
  void parameter_norms(const program::Instruction& instruction, StepOutput& output);
  void set_reference(const program::Instruction& instruction);
  void update(const program::Instruction& instruction);
  void state_out(const program::Instruction& instruction);
  void wait_for_readers(int flat, Stream& stream);
  void exchange_update(const program::Instruction& instruction);
  void layer_update(const program::Instruction& instruction);
  void scale_update(const program::Instruction& instruction);
  void quantize_weights(const program::Instruction& instruction);
  nn::Quantization quantization(const program::Instruction& instruction, nn::Site site, nn::Operand operand);
  void judge(const program::Instruction& instruction);
  void refuse(const program::Instruction& instruction);
  void end_step(const program::Instruction& instruction, StepOutput& output);
  void read_auxiliary_statistics(Stream& compute, StepOutput& output);
  void all_reduce_small(const program::Instruction& instruction, comm::Group& group, const TensorView& data,
                        std::int64_t label = 0);

  const HostBatch* host_batch(int micro_batch) const;  // of the step being enqueued; null on meta, or if negative
  const nn::BatchViews& batch_views(int micro_batch);
  TensorView batch_table(int micro_batch, std::size_t index);  // empty if it is not used

  // What the instruction works on. The first step finds it (executor_bind.cpp).
  Bound& bound(const program::Instruction& instruction);
  void bind(const program::Instruction& instruction, Bound& bound);
  void bind_weights(const program::Instruction& instruction, Bound& bound);
  void bind_gather(const program::Instruction& instruction, Bound& bound);
  TensorView weight_shard(const program::Instruction& instruction);
  void bind_copies(const program::Instruction& instruction, Bound& bound);
  void bind_update(const program::Instruction& instruction, Bound& bound);
  void bind_state_copies(const program::Instruction& instruction, Bound& bound);
  void bind_host_copies(const program::Instruction& instruction, Bound& bound);
  // What updates read of the step: on the device, or the copies of scalars_out.
  struct UpdateScalars {
    TensorView scalars, coefficient, skip, step;
    std::array<TensorView*, 4> all() { return {&scalars, &coefficient, &skip, &step}; }
  };
  UpdateScalars update_scalars(bool on_host);
  TensorView host_gradient(int flat);
  TensorView host_weights(int flat);  // `stored` itself, if layers read its dtype; FlatState::compute, if streamed
  void weights_in(const program::Instruction& instruction);
  TensorView staged(const program::Instruction& instruction, int index, const TensorView& like);
  TensorView stored_on_device(const program::Instruction& instruction);
  TensorView rounded_on_device(const program::Instruction& instruction);
  TensorView rounded_after(const program::Instruction& update);
  void bind_auxiliary(const program::Instruction& instruction, Bound& bound);
  std::vector<TensorView> of_other_stages(const TensorView& statistics) const;
  TensorView auxiliary_table(int micro_batch, int which, std::int64_t elements);
  optim::Exchanged exchanged(int flat, int phase);
  Domain exchanged_over(const nn::Flat& flat, const optim::Phase& phase) const;
  const BoundGradient& gradient(const program::Instruction& instruction, const models::ParamIndex& place, int param);
  const nn::AuxiliaryViews& auxiliary_views(const program::Instruction& instruction);
  void check_first_step(const program::Instruction& instruction) const;
  TensorView activation(int instruction);
  std::vector<nn::SavedSpec> saved_specs(int layer) const;
  nn::Saved saved_views(const program::Instruction& instruction);
  BufferKey gradient_key(int flat, int micro_batch) const;
  DType reduce_dtype(int flat) const;
  TensorView flat_gradient(int flat, int micro_batch);
  const std::vector<models::ParamIndex>& params_of(const program::Instruction& instruction) const;
  std::vector<nn::Scaled> weights_of(const program::Instruction& instruction);
  TensorView temp(const program::Instruction& instruction, DType dtype, const Shape& shape);
  Stream& stream(program::StreamId id) { return *streams_[static_cast<std::size_t>(id)]; }
  void read_program();
  Shape logits_shape() const;
  std::int64_t staged_bytes() const;  // bytes of pinned memory that one step's copies between host and device need

  ExecutorSetup setup_;
  Streams own_streams_;
  Streams& streams_;
  HostLink link_;
  std::vector<bool> awaited_;                    // by instruction: one of another stream waits for it
  std::vector<Event> end_events_;                // by instruction: its end in the step being enqueued, if it is awaited
  std::set<std::pair<int, int>> with_gradient_;  // (flat, index of the parameter): the program computes its gradient
  std::vector<bool> with_auxiliary_;             // by micro-batch: the program has its auxiliary_loss
  bool trains_ = false, has_gradients_ = false;
  Event step_end_;           // of the step enqueued last
  std::vector<Event> held_;  // by flat: the event that its next update waits for, then the tables'; empty: none

  // A device that does the work keeps what the first step has found, for all others. On meta it is forgotten after each
  // instruction, since large plans have many.
  bool keeps_bound_;
  bool first_step_ = true;
  std::vector<Bound> bound_;                                // by instruction; on meta one, of the current instruction
  std::vector<std::optional<nn::BatchViews>> batch_views_;  // by micro-batch
  // While instructions are bound, of the step so far:
  std::set<std::pair<BufferKey, int>> written_;  // gradients written: (buffer, index of the parameter)
  std::set<BufferKey> gaps_filled_;              // gradient buffers whose padding is zeroed
  bool norm_begun_ = false;                      // there was a grad_norm_partial
  bool auxiliary_begun_ = false;                 // there was an auxiliary_loss
  std::vector<std::int64_t> site_elements_;      // of the step so far: ModelState::site_elements
  std::size_t temps_ = 0;                        // temps of the current instruction so far
  const StepInput* input_ = nullptr;             // of the step being enqueued; null between steps
};

}  // namespace hawser::step
