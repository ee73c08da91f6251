// `Session`: a model on a device, distributed over ranks: its state, its arena, and one engine for each kind of step.
//
//   Session session(model, layout, device, mesh, {step::Purpose::train, step::Purpose::loss});
//   session.initialise(seed);                       // or load(folder), or train::load(session, checkpoint, ...)
//   step::StepOutput output = session.enqueue(step::Purpose::train, input);
//
// The constructor plans all steps, then reserves state and arena once. Nothing is allocated inside a step.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/formats/safetensors.h"
#include "models/model.h"
#include "plan/plan.h"
#include "step/executor.h"
#include "step/replay.h"

namespace hawser::train {

// Checks of running steps; enabled in builds with AddressSanitizer.
struct SessionChecks {
  bool replay = step::kAddressSanitizer;  // compares every trace item with the plan
  // Poisons arena bytes outside of live buffers; needs `replay` and the CPU.
  bool guard = step::kAddressSanitizer;
};

// A kind of step and the layout it is planned for; sizes may differ between the kinds of one session.
struct SessionStep {
  step::Purpose purpose = step::Purpose::train;
  plan::Layout layout;
};

class Session {
 public:
  // `capacity`: memory that the session may use; nullopt: the free memory that the device's driver reports, if there is
  // one. Error(does_not_fit) before anything is reserved. References outlive the session. All layouts have equal
  // plan::state_options.
  Session(const models::Model& model, std::vector<SessionStep> steps, Device& device, comm::Mesh& mesh,
          std::optional<Bytes> capacity = std::nullopt, SessionChecks checks = {});
  Session(const models::Model& model, const plan::Layout& layout, Device& device, comm::Mesh& mesh,
          const std::vector<step::Purpose>& purposes, std::optional<Bytes> capacity = std::nullopt,
          SessionChecks checks = {});
  ~Session();

  const models::Model& model() const { return model_; }
  const plan::Layout& layout() const;  // of the first kind of step
  comm::Mesh& mesh() { return mesh_; }
  Device& device() { return device_; }
  Stream& stream() { return *stream_; }  // for work outside steps
  const plan::RankPlan& plan(step::Purpose purpose) const;
  step::ModelState& state() { return *state_; }
  const Arena& arena() const { return arena_; }
  std::int64_t arena_bytes() const { return arena_.bytes(); }
  std::int64_t planned_bytes() const;  // state, arena and the streams' scratch: all device memory of the session

  // Notes for the user: the kernels used by ops that have several, and how memory was reserved. The same on every rank.
  const std::vector<std::string>& notes() const { return notes_; }

  // Fills the parameters of this rank's shard; moments become zero.
  void initialise(std::uint64_t seed);
  void load(checkpoint::SafetensorsFolder& folder);  // has passed models::check_weights
  // Updates the rounded copies after parameters were written from outside (from a checkpoint).
  void parameters_changed();

  // True on the one replica that saves the state which all replicas hold (read it with train/host_copy.h).
  bool owns_states() const;

  // Steps of one purpose follow each other without a wait. A change of purpose waits for earlier steps, since all share
  // one arena.
  step::StepOutput enqueue(step::Purpose purpose, const step::StepInput& input);
  // The same by index of the steps given to the constructor.
  step::StepOutput enqueue(std::size_t which, const step::StepInput& input);
  step::Executor& executor(step::Purpose purpose);
  // The next training step's update of unit u starts after until[u] (train/snapshot.h).
  void hold_updates(const std::vector<Event>& until);
  void synchronize();
  // Blocks until the event `end` of a step is reached. Rethrows an error of any stream, even if that error keeps `end`
  // from being reached: the step's stream may be waiting for ranks that wait for this one.
  void wait(const Event& end);
  // Rethrows an error of any stream so far, without waiting.
  void check();

  // Called on the host before each instruction is enqueued; used to name the phase in timeout messages.
  void set_on_instruction(std::function<void(const program::Instruction&)> on_instruction);

 private:
  struct Engine;
  std::size_t find(step::Purpose purpose) const;
  Engine& engine(step::Purpose purpose) { return *engines_[find(purpose)]; }
  // Registers the memory of communication with the backend: state for gathers, the arena for all else.
  void register_memory();

  const models::Model& model_;
  Device& device_;
  comm::Mesh& mesh_;
  std::unique_ptr<step::ModelState> state_;
  Arena arena_;
  std::vector<std::byte*> registered_;
  std::vector<std::string> notes_;
  std::int64_t scratch_bytes_ = 0;
  std::optional<std::size_t> running_;
  std::unique_ptr<Stream> stream_;
  step::Streams streams_;  // shared by all engines; empty with replay: each engine then has its own
  // Last member, so that in-flight steps end before the memory they write is freed.
  std::vector<std::unique_ptr<Engine>> engines_;
};

}  // namespace hawser::train
