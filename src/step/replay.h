// `ReplayDevice`: verifies that a device does exactly what was planned.
//
// It wraps a device. Each item that an executor enqueues on its streams is compared with the plan's trace (stream,
// name, FLOPs, collective, every access at its planned offset) and then forwarded.
//
// It also guards the arena: bytes that are in no live buffer are poisoned. A buffer is opened when the first op that
// accesses it starts, and closed when the last one has ended. Buffers share bytes only if all accesses to one are over
// before any to the other, so the guard needs no ordering of its own. With AddressSanitizer an access to poisoned bytes
// ends the process; otherwise closed buffers are filled with 0xff, which is NaN.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "device/forwarding_device.h"
#include "step/buffers.h"

namespace hawser::step {

#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif

// Forbids and allows access to a region. poison() destroys its contents.
void poison(std::byte* data, std::int64_t bytes);
void unpoison(std::byte* data, std::int64_t bytes);

// Opens and closes the buffers of the arenas as the ops of a trace start and end. Thread-safe.
class ArenaGuard {
 public:
  // The plan must outlive this. `items`: for each item of the trace, the buffers that it accesses.
  ArenaGuard(const BufferPlan& plan, std::vector<std::vector<int>> items, const Arenas& arenas);

  void begin(int item);  // before the item's work
  void end(int item);    // after it
  // Keeps the buffer open after its last access: it is read between steps.
  void keep(int buffer) { uses_[static_cast<std::size_t>(buffer)].kept = true; }

 private:
  struct Use {
    int accesses = 0;  // items of a step that access the buffer
    int begun = 0, ended = 0;
    bool kept = false;
  };
  std::byte* address(std::size_t buffer) const;

  const BufferPlan& plan_;
  std::vector<std::vector<int>> items_;
  Arenas arenas_;
  std::mutex mutex_;
  std::vector<Use> uses_;
};

struct ReplaySetup {
  const Trace* trace = nullptr;
  const BufferPlan* buffers = nullptr;
  Arenas arenas;
  std::byte* state = nullptr;       // the plan's persistent memory
  std::byte* host_state = nullptr;  // and its part in host memory
  bool guard = true;                // cpu: poison what is not live; initially the arenas are poisoned
};

class ReplayDevice : public ForwardingDevice {
 public:
  // All arguments outlive this; it outlives the streams it makes. Streams must be made in the order of the trace's.
  ReplayDevice(Device& device, const ReplaySetup& setup);
  ~ReplayDevice() override;

  // Called around the enqueueing of each step; end_step throws InternalError if the step did less than planned.
  void begin_step();
  void end_step();
  // Lets the next step wait for these events besides those planned: of concurrent work that reads the steps' state.
  void allow_waits(const std::vector<Event>& events);

  std::unique_ptr<Stream> make_stream(const std::string& name) override;

 private:
  friend class ReplayStream;
  // Each checks that this is the plan's next item, and returns its index.
  int work(int stream, const OpRecord& record);
  int record_event(int stream);
  int wait(int stream, const Event& event);
  int next(TraceItem::Kind kind, int stream, const char* name);
  [[noreturn]] void reject(int item, const std::string& what) const;

  ReplaySetup setup_;
  std::vector<std::vector<Access>> accesses_;  // by item, at their addresses on this device
  std::unique_ptr<ArenaGuard> guard_;
  int streams_ = 0;
  int next_ = 0;
  std::unordered_map<const Event::State*, int> recorded_;  // this step's records
  std::vector<Event> held_;                                // keeps event addresses unique
  std::vector<Event> foreign_;                             // allow_waits()
};

}  // namespace hawser::step
