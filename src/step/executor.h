// `Executor`: runs a program; turns its instructions into calls of layers, ops and collectives on one device. On meta
// the same executor makes the plan; on the CPU it is the reference.
//
// Enqueueing a step waits only for the end of the third step before it (step/host_link.h), and no instruction reads
// device memory on the host: the results of a step are read when its end event has been reached.
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
#include "program/program.h"
#include "step/batch.h"
#include "step/buffers.h"
#include "step/host_link.h"
#include "step/schedule.h"
#include "step/state.h"

namespace hawser::step {

// The streams of a step, by program::StreamId. Executors whose steps do not run concurrently may share them.
using Streams = std::array<std::unique_ptr<Stream>, static_cast<std::size_t>(program::StreamId::count)>;
Streams make_streams(Device& device);

struct OptimizerSettings {
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0, gradient_clip = 0;
};

// Everything the executor refers to; all of it outlives the executor.
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
  std::vector<nn::SavePolicy> policies;
  OptimizerSettings optimizer;
  DType compute = DType::f32;
  // dtype of a micro-batch's unsharded gradients that are reduced to float32 shards; bf16 needs bf16 compute. Ignored
  // if gradients are not reduced to shards, or accumulate over micro-batches first: those are float32.
  DType reduce_dtype = DType::f32;
  int threads = 1;
  bool deterministic = false;       // attention gradients are bitwise repeatable (ops/attention/attention.h)
  bool local_accumulation = false;  // unsharded gradients accumulate over micro-batches; else each is reduced to shards
  bool keep_gradients = false;      // gradient shards stay valid after the step; needs a program with gradients
  bool keep_saved = true;           // false: forward only; no saved tensor outlives its instruction
  // Called before each instruction is enqueued: meta tags its trace with it, the host sets the phase.
  std::function<void(const program::Instruction&)> on_instruction;
};

// The host's input of one step.
struct StepInput {
  StepScalars scalars;
  bool skip = false;                                      // no valid target on any rank: nothing is updated
  std::vector<std::shared_ptr<const HostBatch>> batches;  // one per micro-batch; ignored on meta
  bool keep_loss_sum = false;                             // evaluation: add to the loss of earlier steps
};

// The outputs of a step; filled in when `end` has been reached.
struct StepOutput {
  Event end;
  std::shared_ptr<StepResult> result = std::make_shared<StepResult>();
  // When the device reached `result`: the host may look much later, or at several steps at once.
  std::shared_ptr<std::chrono::steady_clock::time_point> reached =
      std::make_shared<std::chrono::steady_clock::time_point>();
  std::shared_ptr<std::vector<float>> parameter_norms;  // Purpose::gradient_norms: by nn::FusedSlice, in model order
  std::shared_ptr<std::vector<float>> logits;  // Purpose::logits: of the last micro-batch's logit_positions, [B, V]
};

// The name of the op that reads, at the end of a step, the gradients that keep_gradients keeps.
inline constexpr char kKeepGradients[] = "keep_gradients";

class Executor {
 public:
  explicit Executor(ExecutorSetup setup);
  ~Executor();

  StepOutput enqueue(const StepInput& input);
  // The next step's update of unit u waits for until[u]: other work still reads the state before the update.
  void hold_updates(std::vector<Event> until) { held_ = std::move(until); }
  // Blocks until all enqueued work is over; rethrows any stream's error.
  void synchronize();
  // Rethrows errors so far, without waiting.
  void check();
  Stream& compute_stream();
  void set_on_instruction(std::function<void(const program::Instruction&)> on_instruction) {
    setup_.on_instruction = std::move(on_instruction);
  }
  // The shard of a unit's gradient, float32 [count]. With keep_gradients it is valid after synchronize() until the next
  // step.
  TensorView gradient_shard(int unit);

 private:
  class Context;
  class Sink;

  void run(const program::Instruction& instruction, const StepInput& input, StepOutput& output);
  void begin_step(const StepInput& input);
  void load_batch(const program::Instruction& instruction);
  void gather(const program::Instruction& instruction);
  void run_layer(const program::Instruction& instruction);
  void run_embedding_or_head(const program::Instruction& instruction);
  void logits(const program::Instruction& instruction, StepOutput& output);
  void reduce(const program::Instruction& instruction);
  void reduce_replicas(const program::Instruction& instruction);
  void grad_norm_partial(const program::Instruction& instruction);
  void gradient_norm(const program::Instruction& instruction);
  void parameter_norms(const program::Instruction& instruction, StepOutput& output);
  void update(const program::Instruction& instruction);
  void end_step(const program::Instruction& instruction, StepOutput& output);
  void all_reduce_small(const program::Instruction& instruction, comm::Group& group, const TensorView& data);

  const HostBatch* host_batch(int micro_batch) const;  // of the step that is being enqueued; null on meta
  nn::BatchViews batch_views(int micro_batch);
  TensorView activation(int instruction);
  nn::Saved saved_views(const program::Instruction& instruction);
  BufferKey gradient_key(int unit, int micro_batch) const;
  DType reduce_dtype() const;
  TensorView unit_gradient(int unit, int micro_batch);
  std::vector<TensorView> weights_of(const program::Instruction& instruction,
                                     const std::vector<models::ParamPlace>& places);
  TensorView temp(const program::Instruction& instruction, DType dtype, const Shape& shape);
  Stream& stream(program::StreamId id) { return *streams_[static_cast<std::size_t>(id)]; }
  Shape logits_shape() const;
  std::int64_t staged_bytes() const;  // what one step copies between host and device

  ExecutorSetup setup_;
  Streams own_streams_;
  Streams& streams_;
  HostLink link_;
  std::vector<Event> end_events_;  // by instruction, of this step
  Event step_end_;
  std::vector<Event> held_;                      // by unit: what its next update waits for; empty: nothing
  std::set<std::pair<BufferKey, int>> written_;  // gradients written in this step: (buffer, parameter)
  std::set<BufferKey> gaps_filled_;
  bool norm_begun_ = false;  // this step's sum of squares has been started
  int temps_ = 0;
  const StepInput* input_ = nullptr;  // while a step is enqueued
};

}  // namespace hawser::step
