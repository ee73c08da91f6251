// `HostCopy`: a session's device state in host memory, for checkpoints and tests.
//
//   HostCopy copy(session);
//   copy.fetch();                                  // device to host
//   saving.write(copy.states());
//
//   checkpoint.read(copy.states()), copy.store();  // host to device
//
// Views of state that is in host memory are the session's own, and nothing is copied: on the CPU all of them, elsewhere
// those of step::StateOptions::host. The copy of the rest takes as much pageable memory;
// transfers use pinned staging buffers.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/device.h"
#include "models/model.h"
#include "nn/granularity.h"
#include "step/state.h"
#include "tensor/named_state.h"

namespace hawser::engine {

class Session;

// Transfers large contiguous tensors between device and host. Alternates between two pinned buffers of `piece_bytes`,
// so that the host fills or empties one while the other is transferred. Blocks the host.
class PinnedStagingBuffer {
 public:
  PinnedStagingBuffer(Device& device, Stream& stream, std::int64_t piece_bytes = std::int64_t{32} << 20);
  void fetch(const TensorView& from, std::byte* to);
  // `fill` writes bytes [begin, begin + count) of the view's new contents to `piece`.
  using Fill = std::function<void(std::byte* piece, std::int64_t begin, std::int64_t count)>;
  void send(const TensorView& to, const Fill& fill);

 private:
  Stream& stream_;
  std::int64_t piece_bytes_;
  Arena pinned_;
};

// A part of a session's state and its copy in host memory.
struct StatePart {
  std::optional<int> flat;           // none of a table
  std::string prefix;                // of the tensors' names
  TensorView device, host;           // the same view until the copy is placed; `device` may be in host memory, too
  nn::Granularity granularity = {};  // which elements of the flat share a value
  bool of_weights = false;           // optim::StateSlot::of_weights

  bool on_host() const { return device.device() == DeviceKind::cpu; }
};
// Which states.
struct StateScope {
  bool optimizer = true;  // the optimizer's slots, if the session has them
  bool frozen = true;     // weights of frozen flats; false: only what training changes, such as adapters
  // What a quantizer computes: scales of quantized weights, and step::ModelState::tables(). False for a checkpoint of a
  // run without it: the weights' scales are then measured, and the tables stay as they are, new in a new session.
  bool scales = true;
};
// Weights and their scales, then the optimizer's slots, flat by flat; then tables.
std::vector<StatePart> state_parts(Session& session, StateScope scope = {});
// Returns the bytes of the copies of all parts, or only of those that are not in host memory; with `at`, places the
// copies there.
enum class PartsToCopy { all, of_device };
std::int64_t place_copies(std::vector<StatePart>& parts, std::byte* at, PartsToCopy which = PartsToCopy::all);
// The copies as named tensors of the model (nn::value_states), then the tables. Of what several ranks have, such as
// tables and the scales of weights, "scale/TENSOR", one rank saves each value, and all ranks load it.
enum class StatesFor { save, load };
std::vector<NamedState> named_states(Session& session, const std::vector<StatePart>& parts, StatesFor use);

class HostCopy {
 public:
  // The session outlives this.
  explicit HostCopy(Session& session, StateScope scope = {});
  // Copies the state after all enqueued steps; waits for them.
  void fetch();
  void store();
  // The session's states, in host memory.
  std::vector<NamedState> states(StatesFor use = StatesFor::save) const;

 private:
  Session& session_;
  std::unique_ptr<Device> memory_;
  Arena arena_;
  std::vector<StatePart> parts_;
};

// Host copy of a float32 view on the session's device; waits for the session's steps.
std::vector<float> values_of(Session& session, const TensorView& view);

}  // namespace hawser::engine
