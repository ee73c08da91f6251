// `Snapshot`: a copy of a session's state after a step, in host memory, taken while the next step runs.
//
//   Snapshot snapshot(session);              // reserves its memory, once
//   StepOutput output = session.enqueue(Purpose::train, ...);
//   snapshot.take(output.end);               // enqueues the copies without waiting
//   session.enqueue(Purpose::train, ...);    // its updates start on the device after the copies they would overwrite
//   snapshot.wait();                         // any thread: blocks until the copies are complete
//   saving.write(snapshot.states());
//
// Copies run on their own stream after the step's end: on the CPU in that stream's thread, on a GPU on a copy engine
// into pinned memory, or, of state that is in host memory, in the thread of Stream::call_host. Gathers, forward,
// backward and `state_in` may read the state concurrently. Only `update`, `state_out` and `scale_update`
// instructions write it; each waits on the device for an event after the copy of its flat, or of the
// tables. The host does not wait.
#pragma once

#include <memory>
#include <vector>

#include "device/device.h"
#include "engine/host_copy.h"
#include "tensor/named_state.h"

namespace hawser::engine {
class Session;
}

namespace hawser::train {

class Snapshot {
 public:
  // The session trains, owns its states and outlives this. `piece_bytes`: of state in host memory that one host
  // function copies. Error(does_not_fit) if the memory cannot be allocated.
  explicit Snapshot(engine::Session& session, engine::StateScope scope = {},
                    std::int64_t piece_bytes = std::int64_t{4} << 20);

  // Bytes of host memory, all reserved and touched.
  std::int64_t bytes() const { return arena_.bytes(); }

  // Enqueues a copy of the state after the step that ends with `step_end`, which is the last one enqueued. Overwrites
  // the previous copies, which must not be in use.
  void take(const Event& step_end);

  // Blocks until the copies are complete; rethrows their error. Any thread, one at a time, and not during take().
  void wait();

  // The copies; their addresses never change.
  std::vector<NamedState> states() const { return engine::named_states(session_, parts_, engine::StatesFor::save); }

 private:
  engine::Session& session_;
  std::int64_t piece_bytes_;
  std::vector<engine::StatePart> parts_;
  Arena arena_;
  std::unique_ptr<Stream> stream_;  // last member: its work ends before the memory is freed
};

}  // namespace hawser::train
