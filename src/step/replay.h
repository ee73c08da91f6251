// Holds a device to the plan that was made for it.
//
// A ReplayDevice stands before a device: what an executor enqueues on its streams is compared, item by item, with the
// trace of the plan (stream, name, FLOPs, collective, every access in the place the plan gave it), and only then handed
// on. So plan and reality cannot drift.
//
// It also guards the arena: while no live buffer holds a byte, that byte is poisoned. A buffer is opened when the first
// work that accesses it starts and closed when the last one has ended; the plan shares bytes only between buffers of
// which all accesses to the one are over before any to the other, so this needs no order of its own. Under
// AddressSanitizer a touch of poisoned bytes ends the process; else closed buffers are filled with 0xff, which is NaN.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "device/device.h"
#include "step/buffers.h"

namespace hawser::step {

#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif

// No byte of the region may be touched from here on; its contents are lost. And the reverse.
void poison(std::byte* data, std::int64_t bytes);
void unpoison(std::byte* data, std::int64_t bytes);

// Opens and closes the buffers of one arena as the work of a trace comes and goes. Thread-safe.
class ArenaGuard {
 public:
  // Borrows the plan. `items`: of each item of the trace, the buffers that it accesses.
  ArenaGuard(const BufferPlan& plan, std::vector<std::vector<int>> items, std::byte* arena);

  void begin(int item);  // before the item's work
  void end(int item);    // after it
  // The buffer stays open behind its last access: somebody reads it between steps.
  void keep(int buffer) { uses_[static_cast<std::size_t>(buffer)].kept = true; }

 private:
  struct Use {
    int accesses = 0;  // items of a step that access the buffer
    int begun = 0, ended = 0;
    bool kept = false;
  };
  const BufferPlan& plan_;
  std::vector<std::vector<int>> items_;
  std::byte* arena_;
  std::mutex mutex_;
  std::vector<Use> uses_;
};

struct ReplaySetup {
  const Trace* trace = nullptr;
  const BufferPlan* buffers = nullptr;
  std::byte* arena = nullptr;
  std::byte* state = nullptr;  // where the plan's persistent memory lies
  bool guard = true;           // cpu: poison what is not live; the whole arena is poisoned to begin with
};

class ReplayDevice : public Device {
 public:
  // Borrows everything; outlives the streams it makes. They must be made in the order of the trace's streams.
  ReplayDevice(Device& device, const ReplaySetup& setup);
  ~ReplayDevice() override;

  // Around the enqueueing of each step; end_step throws InternalError where the step stopped short of its plan.
  void begin_step();
  void end_step();
  // The next step may wait for these besides what is planned: work beside the steps that reads their state.
  void allow_waits(const std::vector<Event>& events);

  DeviceKind kind() const override { return device_.kind(); }
  std::unique_ptr<Stream> make_stream(const std::string& name) override;
  std::byte* allocate(std::int64_t bytes) override { return device_.allocate(bytes); }
  void free(std::byte* data, std::int64_t bytes) noexcept override { device_.free(data, bytes); }
  void set_allocator(const DeviceAllocator& allocator) override { device_.set_allocator(allocator); }
  std::byte* allocate_host(std::int64_t bytes) override { return device_.allocate_host(bytes); }
  void free_host(std::byte* data, std::int64_t bytes) noexcept override { device_.free_host(data, bytes); }
  std::int64_t allocations() const override { return device_.allocations(); }
  DeviceMemory memory() const override { return device_.memory(); }

 private:
  friend class ReplayStream;
  // Each checks that the plan's next item is this one, and returns its index.
  int work(int stream, const OpRecord& record);
  int record(int stream);
  int wait(int stream, const Event& event);
  int next(TraceItem::Kind kind, int stream, const char* name);
  [[noreturn]] void reject(int item, const std::string& what) const;

  Device& device_;
  ReplaySetup setup_;
  std::vector<std::vector<Access>> accesses_;  // of each item, at their place on this device
  std::unique_ptr<ArenaGuard> guard_;
  int streams_ = 0;
  int next_ = 0;
  std::unordered_map<const Event::State*, int> recorded_;  // this step's records
  std::vector<Event> held_;                                // so that no address is used twice
  std::vector<Event> foreign_;                             // of work beside the step
};

}  // namespace hawser::step
