// `Executor`: runs a program on one device, step after step, as calls of layers, ops and collectives. On meta these
// calls record the trace from which plan/ plans the memory; on the CPU they are the reference for the other devices.
//
// Example: 100 training steps of one micro-batch.
//
//   ExecutorSetup setup = plan::executor_setup(layout, model, program, mesh, Purpose::train);
//   setup.device = &device;
//   setup.state = &state;                // weights, moments, scalars (step/state.h)
//   setup.buffers = &buffers;            // at their planned offsets (step/buffers.h)
//   Executor executor(std::move(setup));
//   std::vector<StepOutput> outputs;
//   for (std::int32_t step = 0; step < 100; ++step) {
//     outputs.push_back(executor.enqueue({.record = {.step = step, ...}, .batches = {batches[step]}}));
//   }
//   executor.synchronize();
//   outputs[99].result->loss_sum.value();   // the last step's loss, summed over all ranks
//
// enqueue() returns before the device has computed the step. It blocks the host only until the third step before has
// ended: step 5 is enqueued when step 2 has ended (step/host_link.h). No instruction makes the host read device memory:
// the compute stream copies a step's results to the host, which may read them once StepOutput::end is reached.
//
// The first step finds what each instruction works on (step/bound.h), and later steps use it again. So all steps of an
// executor have the same program, state and buffers; only StepInput differs.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "comm/mesh.h"
#include "models/model.h"
#include "ops/loss_scale/loss_scale.h"
#include "program/program.h"
#include "step/batch.h"
#include "step/buffers.h"
#include "step/schedule.h"
#include "step/state.h"

namespace hawser::step {

// The streams of a step, indexed by program::StreamId. Those that no program uses are null. Executors may share them if
// their steps do not run concurrently.
using Streams = std::array<std::unique_ptr<Stream>, static_cast<std::size_t>(program::StreamId::count)>;
// Adds the streams that the program uses and `streams` has not.
void add_streams(Device& device, const program::Program& program, Streams& streams);

// The arguments of the constructor.
struct ExecutorSetup {
  // What the executor works on. All of it outlives the executor.
  const models::Model* model = nullptr;
  const program::Program* program = nullptr;
  Device* device = nullptr;
  Streams* streams = nullptr;  // of several executors; without them this one creates its own
  comm::Mesh* mesh = nullptr;
  ModelState* state = nullptr;
  Buffers* buffers = nullptr;

  // What layers see.
  nn::Seams seams;
  BatchBounds bounds;
  std::vector<nn::SavePolicy> policies;  // by layer; attention and MLP of a block are two layers
  DType compute = DType::f32;
  std::uint64_t seed = 0;  // of the random numbers that layers draw
  int threads = 1;
  bool deterministic = false;  // attention gradients are bitwise repeatable (ops/attention/attention.h)

  // Gradients and updates.
  std::shared_ptr<const optim::Optimizer> optimizer;  // needed by a program with updates
  std::optional<double> gradient_clip;                // maximum global L2 norm of the gradient
  ops::LossScaling loss_scaling;
  // dtype of the unsharded gradient of one micro-batch: float32, or the dtype in `compute` above. `reduce`
  // reduce-scatters it into a shard that is always float32. Ignored if local_accumulation is set or parameters are not
  // sharded: unsharded gradients are then float32.
  DType reduce_dtype = DType::f32;
  // True: unsharded gradients accumulate over the step's micro-batches and are reduce-scattered once. False: those of
  // each micro-batch are reduce-scattered, and the shards accumulate.
  bool local_accumulation = false;
  int copies = 1;               // step::ScheduleOptions::copies
  bool keep_gradients = false;  // gradient shards stay valid after the step; needs a program with gradients

  // What differs between kinds of steps.
  Purpose purpose = Purpose::train;
  // The step that begins the history of amaxes (nn::Quantizer::calibrates): x and dy with LinearFormat::fp8_delayed are
  // not quantized, and their amaxes enter the history even if StepInput::skip is set.
  bool calibrates = false;
  Verification verification = Verification::none;
  // A training step that a layer refuses runs again (OptimizerProgress::replay_step); until it has, later ones change
  // nothing. Equal in all kinds of steps of a session.
  bool runs_refused_again = false;

  // The executor calls it on the host before it enqueues an instruction. plan/ labels the items of the trace with the
  // instruction; train/ records it as the phase named in timeout messages, and profile/ labels
  // timelines with it.
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

  // Enqueues a step.
  StepOutput enqueue(const StepInput& input);
  // In the next step, the instructions that write flat f's state (update, state_out, scale_update) wait
  // for until[f], the end of concurrent work that reads it (train/snapshot.h). scale_update also waits for
  // until.back(), the end of work that reads ModelState::tables().
  void hold_updates(std::vector<Event> until);
  // Blocks until all enqueued work has completed; rethrows any stream's error.
  void synchronize();
  // Rethrows any stream's error so far; does not wait.
  void check();

  Stream& compute_stream();
  std::int64_t staging_bytes() const;  // pinned host memory that the executor reserves
  void set_on_instruction(std::function<void(const program::Instruction&)> on_instruction);
  // This rank's shard of the gradient of a flat that its stage holds, float32 [FlatState::count], on the device: the
  // gradient of the mean loss of the global batch, summed over all ranks, before clipping. With keep_gradients it is
  // valid from synchronize() until the next step is enqueued.
  TensorView gradient_shard(int flat);

 private:
  class Impl;  // step/executor_impl.h: the handlers of a program's ops

  std::unique_ptr<Impl> impl_;
};

}  // namespace hawser::step
