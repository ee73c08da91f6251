// `CudaNative`: what kernels and library calls are enqueued with on a GPU. Includes no CUDA header.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <typeindex>

#include "base/error.h"
#include "device/gpus.h"

namespace hawser {

// Fault record of a stream: a kernel of the stream found invalid data, such as an id outside a table, or segments
// outside their tensors. It is in host memory that the device writes. The first fault is kept, and the stream throws it
// at its next check() or synchronize().
struct CudaFault {
  enum Op : std::int32_t {
    none,
    embedding_forward,
    embedding_backward,
    gather_rows,
    scatter_rows,
    cross_entropy,
    segment_count,
    segment_rows,
    group_offset,
    expert_index,
    expert_assignment,
    expert_row
  };
  std::int32_t op = none;
  std::int32_t value = 0;
  std::int64_t at = 0;     // index of the element in the ids
  std::int64_t limit = 0;  // expected: value in [0, limit); group_offset: at most limit
};

// Per-device cache: one object per type, created at the first use and kept as long as the device. Holds library handles
// and their choices.
class CudaCache {
 public:
  template <class T>
  T& get() {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<void>& entry = entries_[std::type_index(typeid(T))];
    if (entry == nullptr) entry = std::make_shared<T>();
    return *static_cast<T*>(entry.get());
  }

 private:
  std::mutex mutex_;
  std::map<std::type_index, std::shared_ptr<void>> entries_;
};

// Scratch memory within one call of an op. The calls of a stream run in order and share it. Allocated at the stream's
// first use, which is before the first step.
constexpr std::int64_t kCudaScratchBytes = std::int64_t{64} << 20;

struct CudaNative {
  void* stream = nullptr;      // a cudaStream_t
  CudaFault* fault = nullptr;  // device address
  CudaCache* cache = nullptr;
  int ordinal = 0;
  int sm_count = 0;
  KernelLimits limits;
  std::function<std::byte*()> scratch;  // kCudaScratchBytes, aligned to 256
};

namespace cuda {

// cudaMemcpyAsync; throws InternalError.
void copy_async(const CudaNative& native, void* to, const void* from, std::int64_t bytes);

}  // namespace cuda
}  // namespace hawser
