// What a session keeps on its device, in host memory: for checkpoints and tests, whose code reads and writes there.
//
//   HostCopy copy(session, /*optimizer=*/true);
//   copy.fetch();                                  // device to host
//   saving.write(copy.states());
//
//   checkpoint.read(copy.states()), copy.store();  // host to device
//
// On the CPU the views are the session's own and nothing is copied. Elsewhere the copy takes as much pageable memory as
// the states; the device sees pinned pieces of kStagingBytes only.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "device/device.h"
#include "models/model.h"
#include "step/state.h"
#include "tensor/named_state.h"

namespace hawser::train {

class Session;

constexpr std::int64_t kStagingBytes = std::int64_t{32} << 20;

// Carries long runs of bytes between device and host: two pinned pieces in turn, so that the host fills or empties one
// while the other travels. Blocks the host.
class PinnedStagingBuffer {
 public:
  PinnedStagingBuffer(Device& device, Stream& stream);
  void fetch(const TensorView& from, std::byte* to);
  // `fill` writes bytes [begin, begin + count) of what the view shall hold.
  using Fill = std::function<void(std::byte* piece, std::int64_t begin, std::int64_t count)>;
  void send(const TensorView& to, const Fill& fill);

 private:
  Stream& stream_;
  Arena pinned_;
};

// A stretch of a session's state and where its copy lies in host memory.
struct StatePart {
  int unit = 0;
  const char* prefix = "";
  TensorView device, host;  // one until the copy has a place
};
// Weights, and with `optimizer` the moments where there are any, unit by unit.
std::vector<StatePart> state_parts(Session& session, bool optimizer);
// Bytes that copies of all parts take; with `at`, they lie there from now on.
std::int64_t place_copies(std::vector<StatePart>& parts, std::byte* at);
// The copies as tensors of the model.
std::vector<NamedState> named_states(Session& session, const std::vector<StatePart>& parts);

class HostCopy {
 public:
  // The session outlives this. optimizer: the moments too, where it has them.
  HostCopy(Session& session, bool optimizer);
  // What the session's steps so far left; waits for them.
  void fetch();
  void store();
  // As Session::states(), in host memory.
  std::vector<NamedState> states() const;

 private:
  Session& session_;
  std::unique_ptr<Device> memory_;  // null: nothing is copied
  Arena arena_;
  std::vector<StatePart> parts_;
};

// A float32 view on the session's device, on the host; waits for the session's steps.
std::vector<float> values_of(Session& session, const TensorView& view);

}  // namespace hawser::train
