#include <atomic>
#include <cstdlib>
#include <exception>
#include <map>
#include <optional>
#include <vector>

#include "base/build.h"
#include "base/environment.h"
#include "base/units.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/native.h"
#include "device/device.h"
#include "device/gpus.h"

namespace hawser {

namespace {

const char* to_string(std::int32_t op) {
  switch (op) {
    case CudaFault::embedding_forward:
      return "embedding_forward: id ";
    case CudaFault::embedding_backward:
      return "embedding_backward: id ";
    case CudaFault::gather_rows:
      return "gather_rows: index ";
    case CudaFault::scatter_rows:
      return "scatter_rows: index ";
    case CudaFault::cross_entropy:
      return "linear_cross_entropy: label ";
    case CudaFault::segment_count:
      return "attention: number of segments ";
    case CudaFault::segment_rows:
      return "attention: first row or number of rows ";  // at: row of the table
    case CudaFault::group_offset:
      return "grouped GEMM: offset ";
    case CudaFault::expert_index:
      return "expert_plan: expert ";
    case CudaFault::expert_assignment:
      return "dispatch_rows: assignment ";
    case CudaFault::expert_row:
      return "combine_rows or weighted_rows_backward: row ";
  }
  return "?";
}

std::string describe(const volatile CudaFault& fault) {
  const std::string what = cat(to_string(fault.op), fault.value, " at ", fault.at);
  if (fault.op == CudaFault::group_offset) {
    return cat(what, "; offsets start with 0 and ascend in multiples of the group size up to ", fault.limit);
  }
  return cat(what, " is outside [0, ", fault.limit, ")");
}

// Shared by streams and events; outlives the device if an event does.
struct Shared {
  int ordinal = 0;
  int sm_count = 0;
  KernelLimits limits;
  std::atomic<std::int64_t> allocations = 0;
  CudaCache cache;
  std::mutex mutex;
  std::vector<cudaEvent_t> spare;  // for reuse

  ~Shared() {
    for (cudaEvent_t event : spare) cudaEventDestroy(event);
  }
  cudaEvent_t take_event() {
    {
      const std::lock_guard lock(mutex);
      if (!spare.empty()) {
        cudaEvent_t event = spare.back();
        spare.pop_back();
        return event;
      }
    }
    cudaEvent_t event = nullptr;
    HAWSER_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync));
    return event;
  }
};

struct CudaEvent : Event::State {
  explicit CudaEvent(std::shared_ptr<Shared> from) : shared(std::move(from)), event(shared->take_event()) {}
  ~CudaEvent() override {
    const std::lock_guard lock(shared->mutex);
    shared->spare.push_back(event);
  }
  // Errors belong to the stream, which reports them in synchronize().
  void host_wait() override { cudaEventSynchronize(event); }

  std::shared_ptr<Shared> shared;
  cudaEvent_t event;
};

class CudaStream : public Stream {
 public:
  CudaStream(std::string name, Device& device, std::shared_ptr<Shared> shared)
      : name_(std::move(name)), device_(device), shared_(std::move(shared)) {
    HAWSER_CUDA_CHECK(cudaSetDevice(shared_->ordinal));
    cudaStream_t stream = nullptr;
    HAWSER_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    void* fault = nullptr;
    HAWSER_CUDA_CHECK(cudaHostAlloc(&fault, sizeof(CudaFault), cudaHostAllocMapped | cudaHostAllocPortable));
    fault_ = new (fault) CudaFault;
    HAWSER_CUDA_CHECK(cudaHostGetDevicePointer(&fault, fault, 0));
    native_ = {.stream = stream,
               .fault = static_cast<CudaFault*>(fault),
               .cache = &shared_->cache,
               .ordinal = shared_->ordinal,
               .sm_count = shared_->sm_count,
               .limits = shared_->limits,
               .scratch = [this] {
                 if (scratch_.data() == nullptr) scratch_ = Arena(device_, kCudaScratchBytes);
                 return scratch_.data();
               }};
  }

  ~CudaStream() override {
    cudaStreamSynchronize(handle());
    cudaStreamDestroy(handle());
    cudaFreeHost(fault_);
  }

  DeviceKind kind() const override { return DeviceKind::cuda; }
  const std::string& name() const override { return name_; }
  const CudaNative* native() const override { return &native_; }

  void launch(OpRecord record, std::function<void()> work) override {
    if (failure_) return;
    enter();
    try {
      work();
      if (const cudaError_t status = cudaPeekAtLastError(); status != cudaSuccess) fail(status, record.name);
    } catch (...) {
      failure_ = std::current_exception();
    }
  }

  void call_host(OpRecord record, std::function<void()> work) override {
    if (failure_) return;
    enter();
    auto call = std::make_unique<HostCall>(HostCall{std::move(work), host_failure_});
    const cudaError_t status = cudaLaunchHostFunc(
        handle(),
        [](void* data) {
          const std::unique_ptr<HostCall> mine(static_cast<HostCall*>(data));
          try {
            mine->work();
          } catch (...) {
            const std::lock_guard lock(mine->failure->mutex);
            if (!mine->failure->error) mine->failure->error = std::current_exception();
          }
        },
        call.get());
    if (status == cudaSuccess) {
      static_cast<void>(call.release());  // the lambda deletes it
    } else {
      fail(status, record.name);
    }
  }

  Event record_event() override {
    enter();
    auto state = std::make_shared<CudaEvent>(shared_);
    note(cudaEventRecord(state->event, handle()), "record");
    return Event(std::move(state));
  }

  void wait(const Event& event) override {
    if (event.state() == nullptr) return;
    auto* state = dynamic_cast<CudaEvent*>(event.state().get());
    HAWSER_CHECK(state != nullptr, "an event of another device");
    enter();
    note(cudaStreamWaitEvent(handle(), state->event, 0), "wait");
  }

  void synchronize() override {
    enter();
    note(cudaStreamSynchronize(handle()), "synchronize");
    report();
  }

  void check() override {
    enter();
    if (const cudaError_t status = cudaStreamQuery(handle()); status != cudaErrorNotReady) note(status, "check");
    report();
  }

 private:
  // Exceptions of host functions. These run on a driver thread and may outlive a failed stream.
  struct HostFailure {
    std::mutex mutex;
    std::exception_ptr error;
  };
  struct HostCall {
    std::function<void()> work;
    std::shared_ptr<HostFailure> failure;
  };

  cudaStream_t handle() const { return static_cast<cudaStream_t>(native_.stream); }

  // The current device is a per-thread setting, and any thread may call this stream.
  void enter() { cudaSetDevice(shared_->ordinal); }

  void note(cudaError_t status, const char* during) {
    if (status != cudaSuccess) fail(status, during);
  }

  // A kernel's error is sticky: every later call in the process's context returns it.
  void fail(cudaError_t status, const char* during) {
    if (failure_) return;
    cudaGetLastError();
    failure_ =
        std::make_exception_ptr(InternalError(cat("cuda: ", cudaGetErrorName(status), ": ", cudaGetErrorString(status),
                                                  ", on stream ", name_, " at or before ", during),
                                              std::source_location::current()));
  }

  void report() {
    const auto* fault = static_cast<const volatile CudaFault*>(fault_);
    if (!failure_ && fault->op != CudaFault::none) {
      failure_ = std::make_exception_ptr(InternalError(describe(*fault), std::source_location::current()));
    }
    if (!failure_) {
      const std::lock_guard lock(host_failure_->mutex);
      failure_ = host_failure_->error;
    }
    if (failure_) std::rethrow_exception(failure_);
  }

  std::string name_;
  Device& device_;
  std::shared_ptr<Shared> shared_;
  CudaFault* fault_ = nullptr;  // host address
  CudaNative native_;
  Arena scratch_;
  std::exception_ptr failure_;
  std::shared_ptr<HostFailure> host_failure_ = std::make_shared<HostFailure>();
};

class CudaDevice : public Device {
 public:
  explicit CudaDevice(int ordinal) : shared_(std::make_shared<Shared>()) {
    shared_->ordinal = ordinal;
    HAWSER_CUDA_CHECK(cudaSetDevice(ordinal));
    const auto attribute = [&](cudaDeviceAttr which) {
      int value = 0;
      HAWSER_CUDA_CHECK(cudaDeviceGetAttribute(&value, which, ordinal));
      return value;
    };
    shared_->sm_count = attribute(cudaDevAttrMultiProcessorCount);
    shared_->limits = limits_as(
        {.capability = 10 * attribute(cudaDevAttrComputeCapabilityMajor) + attribute(cudaDevAttrComputeCapabilityMinor),
         .block_shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin),
         .sm_shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor)},
        environment_variable(kCapabilityVariable));
  }
  DeviceKind kind() const override { return DeviceKind::cuda; }

  std::unique_ptr<Stream> make_stream(const std::string& name) override {
    return std::make_unique<CudaStream>(name, *this, shared_);
  }

  std::byte* allocate(std::int64_t bytes) override {
    void* data = nullptr;
    HAWSER_CUDA_CHECK(cudaSetDevice(shared_->ordinal));
    ++shared_->allocations;
    if (allocator_.allocate && bytes >= kLargeRegion) {
      data = allocator_.allocate(bytes);
      reject(data != nullptr ? cudaSuccess : cudaErrorMemoryAllocation, false, bytes);
      frees_.emplace(data, allocator_.free);
    } else {
      reject(cudaMalloc(&data, static_cast<std::size_t>(bytes)), false, bytes);
    }
    return static_cast<std::byte*>(data);
  }
  void free(std::byte* data, std::int64_t) noexcept override {
    if (const auto found = frees_.find(data); found != frees_.end()) {
      found->second(data);
      frees_.erase(found);
    } else {
      cudaFree(data);
    }
  }
  void set_allocator(const DeviceAllocator& allocator) override { allocator_ = allocator; }

  std::byte* allocate_host(std::int64_t bytes) override {
    void* data = nullptr;
    HAWSER_CUDA_CHECK(cudaSetDevice(shared_->ordinal));
    ++shared_->allocations;
    reject(cudaHostAlloc(&data, static_cast<std::size_t>(bytes), cudaHostAllocPortable), true, bytes);
    return static_cast<std::byte*>(data);
  }
  void free_host(std::byte* data, std::int64_t) noexcept override { cudaFreeHost(data); }

  std::int64_t allocations() const override { return shared_->allocations; }

  DeviceMemory memory() const override {
    std::size_t free = 0, total = 0;
    HAWSER_CUDA_CHECK(cudaSetDevice(shared_->ordinal));
    HAWSER_CUDA_CHECK(cudaMemGetInfo(&free, &total));
    return {.used = static_cast<std::int64_t>(total - free), .total = static_cast<std::int64_t>(total)};
  }

  std::string bus_id() const override {
    char text[32] = "";
    HAWSER_CUDA_CHECK(cudaDeviceGetPCIBusId(text, sizeof text, shared_->ordinal));
    return text;
  }

 private:
  static void reject(cudaError_t status, bool of_host, std::int64_t bytes) {
    if (status == cudaSuccess) return;
    cudaGetLastError();
    if (status != cudaErrorMemoryAllocation) HAWSER_CUDA_CHECK(status);
    const std::string size = format_bytes(Bytes(bytes));
    if (!of_host) {
      throw Error(ExitCode::does_not_fit,
                  cat("memory: the GPU cannot allocate ", size, "; try more GPUs or a smaller model"));
    }
    throw Error(ExitCode::does_not_fit,
                cat("memory: the driver cannot pin ", size,
                    " of host memory; try memory.optimizer_offload: auto, "
                    "which pins what does not fit on the GPU, a smaller --host-memory, or end other processes"));
  }

  std::shared_ptr<Shared> shared_;
  DeviceAllocator allocator_;
  std::map<void*, std::function<void(std::byte*)>> frees_;  // regions from set_allocator
};

}  // namespace

CudaInfo cuda_info() {
  CudaInfo info;
  // With more streams than hardware queues, streams share a queue: work of one that waits for another rank blocks work
  // of the other. The default is 8 queues; the driver reads the variable when CUDA starts, which is here.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
  const cudaError_t status = cudaGetDeviceCount(&info.devices);
  if (status != cudaSuccess || info.devices == 0) {
    cudaGetLastError();
    info.devices = 0;
    info.problem = cat("no GPU: ", status != cudaSuccess ? cudaGetErrorString(status) : "the driver reports none");
    return info;
  }
  std::vector<GpuProperties> gpus;
  for (int i = 0; i < info.devices; ++i) {
    cudaDeviceProp properties{};
    HAWSER_CUDA_CHECK(cudaGetDeviceProperties(&properties, i));
    gpus.push_back({properties.name, 10 * properties.major + properties.minor});
  }
  return supported_gpus(gpus, build().cuda_architectures);
}

std::unique_ptr<Device> make_cuda_device(int index) {
  const CudaInfo info = cuda_info();
  if (index < 0 || index >= info.devices) {
    throw UserError(Problem{.what = info.problem.empty() ? cat("no GPU ", index) : info.problem,
                            .got = info.devices > 0 ? cat(info.devices, " GPUs") : ""});
  }
  return std::make_unique<CudaDevice>(info.ordinals[static_cast<std::size_t>(index)]);
}

namespace cuda {

void copy_async(const CudaNative& native, void* to, const void* from, std::int64_t bytes) {
  if (bytes == 0) return;
  HAWSER_CUDA_CHECK(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault,
                                    static_cast<cudaStream_t>(native.stream)));
}

}  // namespace cuda
}  // namespace hawser
