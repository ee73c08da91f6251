// What a kernel of ours or of a library is enqueued with on a GPU. No CUDA header is needed to read this one.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <typeindex>

#include "base/error.h"

namespace hawser {

// A kernel's report that its data is broken: an id outside a table, a table of segments that leaves its tensors. Lies
// in host memory that the device writes; the first reporter wins, and the stream throws it at its next check() or
// synchronize().
struct CudaFault {
  enum Op : std::int32_t {
    none,
    embedding_forward,
    embedding_backward,
    gather_rows,
    scatter_rows,
    cross_entropy,
    segment_count,
    segment_rows
  };
  std::int32_t op = none;
  std::int32_t value = 0;
  std::int64_t at = 0;     // which element of the ids
  std::int64_t limit = 0;  // value should have been in [0, limit)
};

// One object of each type, made at its first use and kept as long as the device: handles of libraries, choices they
// made.
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

// Memory that ops use between the first and the last kernel of one call. A stream's calls run one after another and
// share it. Reserved at the stream's first use of it, which is before its first step.
constexpr std::int64_t kCudaScratchBytes = std::int64_t{64} << 20;

struct CudaNative {
  void* stream = nullptr;      // a cudaStream_t
  CudaFault* fault = nullptr;  // as the device sees it
  CudaCache* cache = nullptr;
  int ordinal = 0;
  int sm_count = 0;
  std::function<std::byte*()> scratch;  // kCudaScratchBytes, aligned to 256
};

namespace cuda {

// cudaMemcpyAsync; throws InternalError.
void copy_async(const CudaNative& native, void* to, const void* from, std::int64_t bytes);

}  // namespace cuda
}  // namespace hawser
