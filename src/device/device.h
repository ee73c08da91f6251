// `Device`, `Stream`, `Event`, `Arena`: execution and memory of one device.
//
// cpu   runs the work of each stream in order on a thread of its own, so that streams and events have GPU semantics and
//       a missing wait causes errors on a CPU too.
// cuda  one GPU. Work runs immediately on the calling thread, which enqueues kernels on the stream's native handle. A
//       kernel that finds invalid data writes a fault record (device/cuda/native.h); the next check() or synchronize()
//       of its stream throws it.
// meta  runs no work and holds no data: it records a Trace. Its addresses must not be dereferenced.
//
// Errors: if work throws, its stream has failed. It drops all later work, and every later check() or synchronize()
// rethrows the first exception.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/units.h"
#include "device/trace.h"

namespace hawser {

enum class DeviceKind { cpu, meta, cuda };
const char* to_string(DeviceKind kind);

struct CudaNative;  // device/cuda/native.h

// A point in a stream's work, reached when all work before it is done. Copies refer to the same point. A
// default-constructed event is already reached.
class Event {
 public:
  struct State {
    virtual ~State() = default;
    virtual void host_wait() {}
    // Blocks for at most `seconds`; false if the event is not reached by then. A device without support for the timeout
    // blocks until the event is reached.
    virtual bool host_wait_for(double /*seconds*/) {
      host_wait();
      return true;
    }
  };
  Event() = default;
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}
  const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

// A queue of work that runs in order. Called by one host thread at a time.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual DeviceKind kind() const = 0;
  virtual const std::string& name() const = 0;
  // The device kind whose workspace sizes and memory layout to use; on meta, the one planned for.
  virtual DeviceKind target() const { return kind(); }
  // cuda: the handles that kernels are enqueued with; null elsewhere. Streams that wrap another one forward it.
  virtual const CudaNative* native() const { return nullptr; }
  // Enqueues an op without blocking. cpu: `work` runs later on the stream's thread. cuda: `work` runs now and enqueues
  // kernels. meta: `work` is dropped. `record` describes the op: meta stores it in its trace, and streams that
  // wrap another stream use it to compare the op with the plan or to label its timing.
  virtual void launch(OpRecord record, std::function<void()> work) = 0;
  // Enqueues `work` that runs on the host once earlier work of the stream is done, on a thread that the device chooses
  // (cuda: cudaLaunchHostFunc). It must be short and call neither the device nor a stream. If it
  // throws, the stream fails: the next check() or synchronize() throws it. On cuda, the stream
  // learns of the exception only in that check() or synchronize(): work that is enqueued before that call still runs.
  virtual void call_host(OpRecord record, std::function<void()> work) { launch(std::move(record), std::move(work)); }
  // Enqueues an event, which is reached when all work enqueued so far is done.
  virtual Event record_event() = 0;
  // Work enqueued later than this call does not start before the event is reached. Does not block the host.
  virtual void wait(const Event& event) = 0;
  // Blocks the host until all enqueued work is done; then rethrows the stream's first exception, if any.
  virtual void synchronize() = 0;
  // Rethrows the stream's first exception so far, if any; does not wait.
  virtual void check() = 0;
};

// Blocks the host until the event is reached. Does not report errors: synchronize the stream to see them.
void host_wait(const Event& event);
// host_wait with a timeout; false if it expires. On the cpu device, call it in a loop with a short timeout and check
// the streams after each call: a failed stream drops its collectives, so other ranks wait for this rank, and this
// rank's other streams wait for them, until the time limit of the group ends the run. cuda ignores the timeout and
// waits until the event is reached; there, that time limit ends a hang.
bool host_wait_for(const Event& event, double seconds);

// Enqueues a copy of `bytes` bytes between device and host memory, in either direction, or within one of them. The host
// memory must not be changed or freed until the copy is done. With host memory from Memory::host the copy does not
// block the caller.
void transfer(Stream& stream, OpRecord record, void* to, const void* from, std::int64_t bytes);
// The same for bytes that no plan contains: the record lists no accesses.
void transfer(Stream& stream, void* to, const void* from, std::int64_t bytes);

// Bytes of device memory as the driver reports them. `used` is of all processes, including contexts and libraries.
struct DeviceMemory {
  std::int64_t used = 0, total = 0;
};

// device: the device's own memory. host: host memory that the device copies from and to at full speed (cuda: pinned
// memory; elsewhere the same as `device`).
enum class Memory { device, host };

// Replaces the allocator of a cuda device for regions of at least kLargeRegion bytes, so that other processes' GPUs can
// map them (comm/nccl). allocate returns null if the allocation fails.
struct DeviceAllocator {
  std::function<std::byte*(std::int64_t bytes)> allocate;
  std::function<void(std::byte* data)> free;
};
constexpr std::int64_t kLargeRegion = std::int64_t{8} << 20;

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  virtual std::unique_ptr<Stream> make_stream(const std::string& name) = 0;
  // Returns a region of device memory, aligned to kAlignment. cpu: zero-filled pages, resident once touched. Throws
  // Error(does_not_fit) if there is not enough memory.
  virtual std::byte* allocate(std::int64_t bytes) = 0;
  virtual void free(std::byte* data, std::int64_t bytes) noexcept = 0;
  // cuda: later calls of allocate() for at least kLargeRegion bytes use this allocator. Other devices ignore it.
  virtual void set_allocator(const DeviceAllocator&) {}
  // allocate(), free() for Memory::host. Its views have kind cpu (on meta, meta); on cuda, only transfer() takes them.
  virtual std::byte* allocate_host(std::int64_t bytes) { return allocate(bytes); }
  virtual void free_host(std::byte* data, std::int64_t bytes) noexcept { free(data, bytes); }
  // Number of allocations from the driver so far, of device and pinned host memory, including ops' scratch; must not
  // change during a step. Only cuda counts them; others return 0.
  virtual std::int64_t allocations() const { return 0; }
  // Zeros if no driver counts memory (cpu, meta).
  virtual DeviceMemory memory() const { return {}; }
  // cuda: of the GPU on the PCI bus, "0000:1B:00.0"; elsewhere "".
  virtual std::string bus_id() const { return {}; }

  static constexpr std::int64_t kAlignment = 256;
};

// Owns one region of a device's memory.
class Arena {
 public:
  Arena() = default;
  Arena(Device& device, std::int64_t bytes, Memory memory = Memory::device);
  ~Arena();
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;

  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  Device* device_ = nullptr;
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
  Memory memory_ = Memory::device;

  void release() noexcept;
};

struct CpuOptions {
  int threads = 1;               // OpenMP threads of each stream's parallel regions
  double random_delay_s = 0;     // for tests: max seconds of a random sleep before some of a stream's tasks
  double delayed_share = 0.25;   // of the tasks, chosen at random
  std::uint64_t delay_seed = 1;  // of both
};
std::unique_ptr<Device> make_cpu_device(const CpuOptions& options = {});

struct CudaInfo {
  int devices = 0;            // number of GPUs that this process can use
  std::vector<int> ordinals;  // theirs in CUDA's order, which also counts GPUs that this build does not support
  std::string name;           // of the first one
  int capability = 0;         // the lowest compute capability among them, as in 90 for 9.0
  std::string problem;        // why no GPU can be used, for an error message; empty if one can
  std::string unused;         // names GPUs of this machine that this build cannot use, and says why; empty if none
};
CudaInfo cuda_info();
// The device of GPU ordinals[index]. Throws UserError if there is no such GPU, or if this binary was built without
// CUDA.
std::unique_ptr<Device> make_cuda_device(int index = 0);

// The meta device: all its streams record into one trace.
class MetaDevice : public Device {
 public:
  // target: the kind of device that the trace is recorded for.
  explicit MetaDevice(DeviceKind target = DeviceKind::cpu) : target_(target) {}
  DeviceKind kind() const override { return DeviceKind::meta; }
  std::unique_ptr<Stream> make_stream(const std::string& name) override;
  // Address ranges are disjoint, with gaps between them.
  std::byte* allocate(std::int64_t bytes) override;
  void free(std::byte*, std::int64_t) noexcept override {}

  const Trace& trace() const { return trace_; }
  Trace take_trace() { return std::move(trace_); }
  void set_instruction(int instruction) { instruction_ = instruction; }  // of the trace items that follow

 private:
  friend class MetaStream;
  DeviceKind target_;
  Trace trace_;
  int instruction_ = -1;
  std::uint64_t next_address_ = kFirstAddress;
  static constexpr std::uint64_t kFirstAddress = std::uint64_t{1} << 40;
};

}  // namespace hawser
