// `Device`, `Stream`, `Event`, `Arena`: execution and memory of one device.
//
// cpu   runs work on one worker thread per stream, in order, so that streams and events have GPU semantics and ordering
//       bugs show on a CPU.
// cuda  one GPU. Work runs immediately on the calling thread and enqueues kernels on the stream's native handle.
//       Kernels that find invalid data write a report, which check() and synchronize() throw (device/cuda/native.h).
// meta  runs no work and holds no data; it records a Trace. Its addresses must not be dereferenced.
//
// Errors: work that throws poisons its stream: later work is dropped, and the next synchronize() rethrows.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "base/units.h"
#include "device/trace.h"

namespace hawser {

enum class DeviceKind { cpu, meta, cuda };
const char* to_string(DeviceKind kind);

struct CudaNative;  // device/cuda/native.h

// A point in a stream's work. Copies share the point. A default-constructed event is already reached.
class Event {
 public:
  struct State {
    virtual ~State() = default;
    virtual void host_wait() {}
    // False if the event is not reached within `seconds`. A device may block until it is reached instead.
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

// In-order queue of work. Called by one host thread at a time.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual DeviceKind kind() const = 0;
  virtual const std::string& name() const = 0;
  // The device whose memory and sizes are meant: meta returns the device that it plans for.
  virtual DeviceKind target() const { return kind(); }
  // cuda: what kernels are enqueued with; null elsewhere. Wrapping streams forward it.
  virtual const CudaNative* native() const { return nullptr; }
  // Enqueues `work` without blocking (cpu: it runs later on the stream's thread; cuda: it runs now and enqueues; meta:
  // it is dropped).
  virtual void launch(OpRecord record, std::function<void()> work) = 0;
  // Enqueues `work` that runs on the host, on a thread of the device, once earlier work is done (cuda:
  // cudaLaunchHostFunc). It must be short and call neither the device nor a stream. check() and synchronize() rethrow
  // its exceptions.
  virtual void call_host(OpRecord record, std::function<void()> work) { launch(std::move(record), std::move(work)); }
  // An event after all work enqueued so far.
  virtual Event record_event() = 0;
  // Work enqueued later starts after the event. Does not block the host.
  virtual void wait(const Event& event) = 0;
  // Blocks the host until all enqueued work is done; rethrows its first exception.
  virtual void synchronize() = 0;
  // Rethrows the first exception so far; does not wait.
  virtual void check() = 0;
};

// Blocks the host until the event is reached. Does not report errors: synchronize the stream to see them.
void host_wait(const Event& event);
// host_wait with a timeout; false if it expires. Only the cpu device supports the timeout. The host can check for
// errors in between: a failed stream can leave another one waiting for ranks that wait for this rank.
bool host_wait_for(const Event& event, double seconds);

// Enqueues a copy of `bytes` between device and host memory, in either direction, or within one of them. The host
// memory must not change until the copy is done; with Memory::host the copy does not block the caller.
void transfer(Stream& stream, OpRecord record, void* to, const void* from, std::int64_t bytes);

// Memory use as the device's driver reports it: of all processes, including contexts and libraries.
struct DeviceMemory {
  std::int64_t used = 0, total = 0;
};

// host: host memory that the device copies from and to at full speed (cuda: pinned; elsewhere the same as `device`).
enum class Memory { device, host };

// Allocator for a device's large regions, instead of the device's own: memory that other GPUs' processes can map
// (comm/nccl). allocate returns null if the allocation fails.
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
  // Aligned to kAlignment. cpu: zero-filled pages, resident once touched. Throws Error(does_not_fit).
  virtual std::byte* allocate(std::int64_t bytes) = 0;
  virtual void free(std::byte* data, std::int64_t bytes) noexcept = 0;
  // cuda: later regions of at least kLargeRegion bytes come from this allocator.
  virtual void set_allocator(const DeviceAllocator&) {}
  virtual std::byte* allocate_host(std::int64_t bytes) { return allocate(bytes); }
  virtual void free_host(std::byte* data, std::int64_t bytes) noexcept { free(data, bytes); }
  // Number of allocations from the system so far, including ops' scratch; does not change during a step. Counted by
  // cuda only.
  virtual std::int64_t allocations() const { return 0; }
  // Zeros if no driver counts memory (cpu, meta).
  virtual DeviceMemory memory() const { return {}; }

  static constexpr std::int64_t kAlignment = 256;
};

// Owns one region of device memory.
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
  int threads = 1;            // OpenMP threads of each stream's parallel regions
  double random_delay_s = 0;  // tests: sleep a random time up to this before each task
  std::uint64_t delay_seed = 1;
};
std::unique_ptr<Device> make_cpu_device(const CpuOptions& options = {});

struct CudaInfo {
  int devices = 0;      // GPUs that this process may use
  std::string name;     // name of the first
  std::string problem;  // why there is none, as a sentence; empty if there is one
};
CudaInfo cuda_info();
// Throws UserError if there is no such GPU, or if this binary was built without CUDA.
std::unique_ptr<Device> make_cuda_device(int ordinal = 0);

// A device whose streams write one trace.
class MetaDevice : public Device {
 public:
  // target: the device that is planned for.
  explicit MetaDevice(DeviceKind target = DeviceKind::cpu) : target_(target) {}
  DeviceKind kind() const override { return DeviceKind::meta; }
  std::unique_ptr<Stream> make_stream(const std::string& name) override;
  // Address ranges are disjoint, with gaps between them.
  std::byte* allocate(std::int64_t bytes) override;
  void free(std::byte*, std::int64_t) noexcept override {}

  const Trace& trace() const { return trace_; }
  Trace take_trace() { return std::move(trace_); }
  void set_instruction(int instruction) { instruction_ = instruction; }  // stored in the items that follow

 private:
  friend class MetaStream;
  DeviceKind target_;
  Trace trace_;
  int instruction_ = -1;
  std::uint64_t next_address_ = kFirstAddress;
  static constexpr std::uint64_t kFirstAddress = std::uint64_t{1} << 40;
};

}  // namespace hawser
