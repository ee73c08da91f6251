// A device, its streams and events, and the one region of memory a purpose gets.
//
// cpu   runs work on worker threads, one a stream, first in first out, so that streams and events mean what they mean
//       on a GPU and every ordering mistake shows itself on a laptop.
// cuda  one GPU. Work runs at once on the calling thread and enqueues kernels on the stream's native handle; kernels
//       that find their data broken leave a report that check() and synchronize() throw (device/cuda/native.h).
// meta  does no work and holds no data; it keeps a Trace. Its addresses are numbers that must not be dereferenced.
//
// Errors: work that throws on a stream poisons it: later work is dropped, and the next synchronize() rethrows.
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

// A point in a stream's work. Copies share the point. A default event is already reached.
class Event {
 public:
  struct State {
    virtual ~State() = default;
    virtual void host_wait() {}
    // False: not reached after so long. A device may wait for good instead.
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

// In-order queue of work. Called from one host thread at a time.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual DeviceKind kind() const = 0;
  virtual const std::string& name() const = 0;
  // The kind whose memory and sizes are meant: meta answers with the device it stands for.
  virtual DeviceKind target() const { return kind(); }
  // cuda: what kernels are enqueued with; null elsewhere. Streams that wrap another pass it on.
  virtual const CudaNative* native() const { return nullptr; }
  // Enqueues `work` (cpu: runs later on the stream's thread; cuda: runs now and enqueues; meta: dropped) and returns
  // at once.
  virtual void launch(OpRecord record, std::function<void()> work) = 0;
  // The same for work that runs on the host when the stream gets there, on a thread of the device's (cuda:
  // cudaLaunchHostFunc). It must be short and call neither the device nor a stream. What it throws is kept for check()
  // and synchronize().
  virtual void call_host(OpRecord record, std::function<void()> work) { launch(std::move(record), std::move(work)); }
  // The point after all work enqueued so far.
  virtual Event record() = 0;
  // Work enqueued from here on starts after the event. Does not block the host.
  virtual void wait(const Event& event) = 0;
  // Blocks the host until all work enqueued so far is done; rethrows what it threw.
  virtual void synchronize() = 0;
  // Rethrows what work has thrown so far; does not wait.
  virtual void check() = 0;
};

// Blocks the host until the event is reached. Does not report errors: synchronize the stream for those.
void host_wait(const Event& event);
// The same for about so long at a time, where the device is the CPU; false: it has not been reached. Meanwhile the host
// may look for errors: work of one stream that failed may leave another waiting for ranks that wait for this one.
bool host_wait_for(const Event& event, double seconds);

// Enqueues a copy of `bytes` between memory of the device and of the host, either way, or within one of them. Host
// memory stays as it is until the stream has passed; from Memory::host the copy does not hold up the caller.
void transfer(Stream& stream, OpRecord record, void* to, const void* from, std::int64_t bytes);

// Memory of a device as its driver counts it: of all processes, contexts and libraries too.
struct DeviceMemory {
  std::int64_t used = 0, total = 0;
};

// host: memory of the host that the device copies from and to at full speed (cuda: pinned; else as `device`).
enum class Memory { device, host };

// Where a device's large regions come from, in place of its own call: memory of a kind that the processes of other GPUs
// can map (comm/nccl). allocate returns null where the memory is refused.
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
  // Aligned to kAlignment. cpu: zero-filled pages that count as used when first touched. Throws Error(does_not_fit).
  virtual std::byte* allocate(std::int64_t bytes) = 0;
  virtual void free(std::byte* data, std::int64_t bytes) noexcept = 0;
  // cuda: regions of kLargeRegion bytes and more are allocated so from here on.
  virtual void set_allocator(const DeviceAllocator&) {}
  virtual std::byte* allocate_host(std::int64_t bytes) { return allocate(bytes); }
  virtual void free_host(std::byte* data, std::int64_t bytes) noexcept { free(data, bytes); }
  // How often memory was asked of the system so far, ops' own scratch included; equal before and after a step. Only
  // cuda counts.
  virtual std::int64_t allocations() const { return 0; }
  // Zeros where there is no driver that counts (cpu, meta).
  virtual DeviceMemory memory() const { return {}; }

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
  int threads = 1;            // OpenMP threads of each stream's parallel regions
  double random_delay_s = 0;  // tests: sleep a random time up to this before each piece of work
  std::uint64_t delay_seed = 1;
};
std::unique_ptr<Device> make_cpu_device(const CpuOptions& options = {});

struct CudaInfo {
  int devices = 0;      // GPUs that this process may use
  std::string name;     // of the first
  std::string problem;  // why there is none, as a sentence; empty where there is one
};
CudaInfo cuda_info();
// Throws UserError where there is no such GPU, or this binary was built without CUDA.
std::unique_ptr<Device> make_cuda_device(int ordinal = 0);

// A device whose streams all write one trace.
class MetaDevice : public Device {
 public:
  // target: the device whose work is planned.
  explicit MetaDevice(DeviceKind target = DeviceKind::cpu) : target_(target) {}
  DeviceKind kind() const override { return DeviceKind::meta; }
  std::unique_ptr<Stream> make_stream(const std::string& name) override;
  // Every region gets addresses of its own, far from all others.
  std::byte* allocate(std::int64_t bytes) override;
  void free(std::byte*, std::int64_t) noexcept override {}

  const Trace& trace() const { return trace_; }
  Trace take_trace() { return std::move(trace_); }
  void set_instruction(int instruction) { instruction_ = instruction; }  // stamped on the items that follow

 private:
  friend class MetaStream;
  DeviceKind target_;
  Trace trace_;
  int instruction_ = -1;
  std::uint64_t next_address_ = kFirstAddress;
  static constexpr std::uint64_t kFirstAddress = std::uint64_t{1} << 40;
};

}  // namespace hawser
