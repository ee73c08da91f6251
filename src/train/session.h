// A model on a device, laid out over ranks: its state, its arena, and one engine for each kind of step it runs.
//
//   Session session(model, layout, device, mesh, {step::Purpose::train, step::Purpose::loss});
//   session.initialise(seed);                       // or load(folder), or read(checkpoint)
//   step::StepOutput output = session.enqueue(step::Purpose::train, input);
//
// All plans are made first; then state and arena are reserved, once, and nothing is allocated inside a step.
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

// How closely steps are watched; on in builds with AddressSanitizer.
struct SessionChecks {
  bool replay = step::kAddressSanitizer;  // every item is compared with the plan
  // Bytes of the arena that nothing lives in are poisoned; needs replay, on the CPU.
  bool guard = step::kAddressSanitizer;
};

// A kind of step, and what it is planned for: sizes of a step may differ between kinds of one session.
struct SessionStep {
  step::Purpose purpose = step::Purpose::train;
  plan::Layout layout;
};

class Session {
 public:
  // `capacity`: what the session may take; none: what the device's driver says is free, where there is one.
  // Error(does_not_fit) before anything is reserved. All borrowed things outlive the session. Layouts agree in what the
  // state is made of (plan::state_options).
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
  std::int64_t planned_bytes() const;  // state, arena and the streams' scratch: all that it reserves on the device

  // What a user may want to know: the kernels that steps take where an op has several, and what came of reserving
  // memory. The same on every rank.
  const std::vector<std::string>& notes() const { return notes_; }

  // Fills the parameters of this rank's shard; moments become zero.
  void initialise(std::uint64_t seed);
  void load(checkpoint::SafetensorsFolder& folder);  // has passed models::check_weights
  // After parameters were written from outside (a checkpoint): brings rounded copies up to date.
  void parameters_changed();

  // True on the one of the replicas that saves the state they all hold (train/host_copy.h has it).
  bool owns_states() const;

  // Steps of one purpose follow each other without a stop; a change of purpose waits for the steps before, since all
  // share one arena.
  step::StepOutput enqueue(step::Purpose purpose, const step::StepInput& input);
  // The same of the steps given to the constructor, by their place among them.
  step::StepOutput enqueue(std::size_t which, const step::StepInput& input);
  step::Executor& executor(step::Purpose purpose);
  // The next training step's update of unit u starts after until[u] (train/snapshot.h).
  void hold_updates(const std::vector<Event>& until);
  void synchronize();
  // Blocks until a step's end is reached; rethrows what failed on a stream, also where that keeps the end from coming:
  // another stream may be waiting for ranks that wait for this one.
  void wait(const Event& end);
  // Rethrows what failed on a stream so far, without waiting.
  void check();

  // Called on the host before a row is enqueued; for the phase that a time-out names.
  void set_on_instruction(std::function<void(const program::Instruction&)> on_instruction);

 private:
  struct Engine;
  std::size_t find(step::Purpose purpose) const;
  Engine& engine(step::Purpose purpose) { return *engines_[find(purpose)]; }
  // Gathers read the state, all else that travels lies in the arena.
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
  step::Streams streams_;  // of all engines; none where steps are watched: those have their own
  // Last, so that steps still on their way end before the memory they write goes.
  std::vector<std::unique_ptr<Engine>> engines_;
};

}  // namespace hawser::train
