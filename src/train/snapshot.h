// A session's state as a step left it, copied to host memory while the next step already runs.
//
//   Snapshot snapshot(session);              // reserves its memory, once
//   StepOutput output = session.enqueue(Purpose::train, ...);
//   snapshot.take(output.end);               // enqueues the copies; waits for nothing
//   session.enqueue(Purpose::train, ...);    // its updates start on the device after the copies they would overwrite
//   snapshot.wait();                         // any thread: the copies are whole
//   saving.write(snapshot.states());
//
// Copies run on a stream of their own, from the step's end on: on the CPU they are its thread's, on a GPU the copy
// engine's into pinned memory. Gathers, forward and backward read the state beside them; only `update` rows write it,
// and each of those waits for the copy of its own unit, by an event. The host waits for nothing.
#pragma once

#include <memory>
#include <vector>

#include "device/device.h"
#include "tensor/named_state.h"
#include "train/host_copy.h"

namespace hawser::train {

class Session;

class Snapshot {
 public:
  // The session trains, owns its states and outlives this. Error(does_not_fit) where the memory is refused.
  explicit Snapshot(Session& session);

  // Bytes of host memory, all of them reserved and touched.
  std::int64_t bytes() const { return arena_.bytes(); }

  // Enqueues the copy of what the step that ends with `step_end` leaves, which is the last one enqueued. The copies
  // before are overwritten: nobody reads them any more.
  void take(const Event& step_end);

  // Blocks until the copies are whole; rethrows what failed. Any thread, one at a time, and none calls take() then.
  void wait();

  // The copies, at the same place every time.
  std::vector<NamedState> states() const { return named_states(session_, parts_); }

 private:
  Session& session_;
  std::vector<StatePart> parts_;
  Arena arena_;
  std::unique_ptr<Stream> stream_;  // last: its work ends before the memory goes
};

}  // namespace hawser::train
