// `Session`: a model on a device, distributed over ranks: its state, its arena, and one plan and executor for each
// `StepConfig`.
//
//   Session session(model, layout, device, mesh, {step::Purpose::train, step::Purpose::loss});
//   session.initialise(seed);                       // or load(sources, seed), or load(session, checkpoint, ...)
//   step::StepOutput output = session.enqueue(step::Purpose::train, input);
//
// The constructor plans all steps, then reserves state and arena once. Nothing is allocated inside a step.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/formats/safetensors.h"
#include "models/model.h"
#include "models/weights.h"
#include "plan/cost_model.h"
#include "plan/plan.h"
#include "step/executor.h"
#include "step/replay.h"

namespace hawser::engine {

class StagedWeights;

// Checks of running steps; enabled in builds with AddressSanitizer.
struct SessionChecks {
  bool replay = step::kAddressSanitizer;  // compares every trace item with the plan
  // Poisons arena bytes outside of live buffers; needs `replay` and the CPU.
  bool guard = step::kAddressSanitizer;
  // Maximum bytes of pinned host memory of the sessions of all ranks on this machine; the constructor throws DoesNotFit
  // before it reserves memory if more are needed. nullopt: on a GPU, the host memory that is free now. Not checked on
  // other devices, where the memory is in `capacity`.
  std::optional<Bytes> host_capacity = std::nullopt;
};

// A kind of step (`purpose`) and the layout that it is planned for. A session may have several with the same purpose
// and different sizes, such as the shape buckets of generation.
struct StepConfig {
  step::Purpose purpose = step::Purpose::train;
  plan::Layout layout;
};

// What scales of weights follow parameters that were written from outside of steps (nn/quantizer.h). Without quantized
// weights both are the same.
enum class Scales {
  measure,  // computed from the new values
  keep,     // those that the state has, because they were loaded with the parameters
};

class Session {
 public:
  // `capacity`: maximum bytes of planned_bytes(), and on the CPU of pinned_bytes() in addition; the constructor throws
  // DoesNotFit before it reserves memory if more are needed. nullopt: the free memory that the device's driver
  // reports; without such a driver (cpu, meta) the session is not checked. `model`, `device` and `mesh` must outlive
  // the session. plan::state_options must be equal for the layouts of all `configs`: they share one state, and one
  // arena of the size of the largest.
  // Collective: every rank of the mesh calls it with the same configs. DoesNotFit is thrown on every rank of the run if
  // one does not fit, before any of them reserves memory. Another error, also the Error(does_not_fit) of an allocation
  // that fails, may be thrown on this rank only; whoever called it must then end the other ranks.
  Session(const models::Model& model, std::vector<StepConfig> configs, Device& device, comm::Mesh& mesh,
          std::optional<Bytes> capacity = std::nullopt, SessionChecks checks = {});
  // The same with one StepConfig of this layout for each purpose.
  Session(const models::Model& model, const plan::Layout& layout, Device& device, comm::Mesh& mesh,
          const std::vector<step::Purpose>& purposes, std::optional<Bytes> capacity = std::nullopt,
          SessionChecks checks = {});
  ~Session();

  const models::Model& model() const { return model_; }
  const plan::Layout& layout() const;  // of the first StepConfig
  comm::Mesh& mesh() { return mesh_; }
  Device& device() { return device_; }
  Stream& stream() { return *stream_; }  // for work outside steps
  // Of the first StepConfig with this purpose. Here and below, InternalError if there is none.
  const plan::RankPlan& plan(step::Purpose purpose) const;
  // Of the kind of step that needs the most memory: their sum by purpose is planned_bytes().
  plan::Costs largest_costs() const;
  step::ModelState& state() { return *state_; }
  // What is planned and predicted of each pipeline stage. On the first rank of the run only, with several stages.
  struct Stage {
    std::int64_t planned_bytes = 0;  // as planned_bytes()
    plan::StepTime time;             // of a training step
  };
  const std::vector<Stage>& stages() const { return stages_; }
  std::vector<plan::StepTime> stage_times() const;  // of stages()
  const Arena& arena() const { return arena_; }
  std::int64_t arena_bytes() const { return arena_.bytes(); }
  // State, arena, and the compute stream's scratch buffer: all device memory of the session.
  std::int64_t planned_bytes() const;
  // Of the rank that needs the most, as far as this one knows: on the first rank of the run, of all pipeline stages.
  std::int64_t largest_planned_bytes() const;
  std::int64_t pinned_bytes() const { return pinned_bytes_; }  // host arena, host state, and staging of all steps

  // Notes for the user: plan::implementations of all steps, and why collectives cannot use registered memory
  // (comm::Mesh::register_memory, compare_offsets).
  const std::vector<std::string>& notes() const { return notes_; }

  // Writes initial values to the parameters of this rank's shard. Like load() and parameters_changed(), it waits for
  // all steps and may overwrite what they have left in the arena. Does not change the moments, which the constructor
  // sets to zero.
  void initialise(std::uint64_t seed);
  // Loads the parameters of this rank's shard. `sources` must have passed models::check_weights. Tensors that they do
  // not have get the initial values of `seed`.
  void load(const models::WeightSources& sources, std::uint64_t seed);
  // Quantizes this rank's shards of flats of step::FlatState::quantized_on_load. `read` writes elements from `first` on
  // of the shard to `values`, float32 on the host. Blocks the host. All ranks that have parts of the flats call it, and
  // parameters_changed() afterwards.
  using ReadShard = std::function<void(int flat, std::int64_t first, const TensorView& values)>;
  void load_quantized(const std::vector<int>& flats, const ReadShard& read);
  // Rounds the float32 parameters into their copies in the compute dtype, or quantizes them; blocks the host.
  // Collective. initialise() and load() do it themselves, and quantize frozen weights in FP8 and NF4 as they write
  // them: call it after writing parameters in another way, such as from a checkpoint.
  void parameters_changed(Scales scales = Scales::measure);

  // True on the ranks of the first replica. All replicas hold the same state; this one saves it (engine/host_copy.h).
  bool owns_states() const;

  // Enqueues a step of the first StepConfig with this purpose. A training step before which there is no history of
  // amaxes (nn::Quantizer::calibrates) runs twice, and the host waits for the first, which updates no weights.
  // Otherwise the host waits in two cases only: until the third step before this one has ended (step/executor.h); and,
  // if the step before has another StepConfig, until all steps so far have ended, because all share one arena.
  step::StepOutput enqueue(step::Purpose purpose, const step::StepInput& input);
  // The same for the StepConfig with this index in the constructor's `configs`.
  step::StepOutput enqueue(std::size_t index, const step::StepInput& input);
  // A training step, and before it the same one with x and dy of Linears in the compute dtype, which changes nothing
  // (step::Verification). The weights are the same, quantized, in both; StepOutput::parameter_norms are those of the
  // reference gradient, and of the difference. The host waits for all steps so far. Needs plan::Layout::verify_every.
  struct Verified {
    step::StepOutput reference, step;
  };
  Verified enqueue_verified(const step::StepInput& input);
  // A step again that was refused (step::Skip::refused), in plan::of_refused_steps() of the first StepConfig with this
  // purpose. The host waits for all steps so far. Of training, it is the step OptimizerProgress::replay_step, and the
  // steps that were enqueued after it have changed nothing.
  step::StepOutput enqueue_refused(step::Purpose purpose, const step::StepInput& input);
  // enqueue() of a step that changes nothing, and enqueue_refused() if it is refused; blocks the host until its end.
  // Error on every rank if more rows arrive than plan::Layout::expert_row_fallback allows.
  step::StepOutput run(step::Purpose purpose, const step::StepInput& input);
  // The Error of a step with more rows than that.
  Error too_many_rows(const step::StepOutput& refused) const;
  // Of the first StepConfig with this purpose.
  step::Executor& executor(step::Purpose purpose);
  // Sets what a resumed run has counted so far; waits for enqueued steps.
  void set_progress(const step::OptimizerProgress& progress);
  // In the next training step, of whichever StepConfig, the device changes flat f's state after the event until[f], and
  // the tables of the state after until.back() (train/snapshot.h).
  void hold_updates(const std::vector<Event>& until);
  // Blocks the host until all steps have ended. Rethrows an error of any stream.
  void synchronize();
  // Blocks the host until `end`, the end event of a step (step::StepOutput), is reached; then rethrows an error of any
  // stream. On the CPU it polls the streams meanwhile: after an error, `end` may never be reached, because the step may
  // wait for ranks that wait for this one. On cuda, the time limit of the collectives ends such a run.
  void wait(const Event& end);
  // Rethrows an error of any stream so far. Does not block.
  void check();

  // Called on the host before each instruction is enqueued; used to name the phase in timeout messages.
  void set_on_instruction(const std::function<void(const program::Instruction&)>& on_instruction);

 private:
  struct PlannedStep;
  std::size_t find(step::Purpose purpose) const;  // index of the first StepConfig with this purpose
  PlannedStep& planned_step(step::Purpose purpose) { return *planned_steps_[find(purpose)]; }
  // Begins a history of amaxes with a step of this input, unless the state has one.
  void calibrate(const step::StepInput& input);
  bool has_history();  // waits for all steps
  // In the arena, when all steps have ended.
  StagedWeights stage_weights();
  bool in_nf4(int flat) const;
  // Nf4Loader, for all flats in NF4. `fill` has values on the device.
  void load_nf4(StagedWeights& staged, const ReadShard& fill, const models::WeightSources* sources = nullptr);
  // step::quantize_loaded; blocks the host.
  void quantize(int flat, const TensorView& values, StagedWeights& staged);
  // The plan of a kind of step on this rank. The first rank of the run makes those of all pipeline stages, checks them
  // together and sends them. With replay each rank makes its own, with its trace.
  plan::RankPlan make_plan(const StepConfig& config, bool optimizer, bool replay);
  void note_stages(const StepConfig& config, const std::vector<plan::RankPlan>& plans);
  // Registers with the comm backend the memory that collectives use: the state, which all-gathers of weights read, and
  // the arena, for all other operands.
  void register_memory();
  // Groups whose members have views at different offsets cannot fetch from registered memory.
  void compare_offsets();

  const models::Model& model_;
  Device& device_;
  comm::Mesh& mesh_;
  std::unique_ptr<step::ModelState> state_;
  Arena arena_, host_arena_;
  std::int64_t pinned_bytes_ = 0;
  std::optional<std::size_t> calibration_;  // index of the step with plan::Layout::calibrates; none: not needed
  std::optional<bool> has_history_;         // none: not known
  // Indices of the steps with plan::Layout::verification; none: not needed.
  std::optional<std::size_t> reference_, comparison_;
  std::map<std::size_t, std::size_t> refused_;               // by index of a step: that of its refused steps
  std::shared_ptr<const step::OptimizerProgress> progress_;  // of the last enqueued step with updates
  std::vector<std::byte*> registered_;
  std::vector<std::string> notes_;
  std::vector<Stage> stages_;
  std::int64_t scratch_bytes_ = 0;
  bool guarded_ = false;                // the arena is poisoned between steps
  std::vector<Event> held_;             // by flat: what the updates of the next training step wait for, if anything
  std::optional<std::size_t> running_;  // index of the StepConfig of the last enqueued step
  std::unique_ptr<Stream> stream_;
  step::Streams streams_;  // shared by all executors; empty with replay: each executor then has its own
  // Last member, so that in-flight steps end before the memory they write is freed. In the order of `configs`.
  std::vector<std::unique_ptr<PlannedStep>> planned_steps_;
};

}  // namespace hawser::engine
