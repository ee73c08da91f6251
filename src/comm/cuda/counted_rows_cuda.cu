#include <cuda_runtime.h>

#include <algorithm>

#include "comm/cuda/counted_rows_cuda.h"
#include "device/cuda/cuda_check.h"

namespace hawser::comm {

namespace {

constexpr int kThreads = 512;
constexpr std::size_t kMembers = 64;  // of one launch

struct Slots {
  const std::byte* from[kMembers];  // by member
  std::byte* to;
  const std::int32_t* counts;
  std::int64_t each, bound, row_bytes;  // slots of a member, rows of a slot
};

// blockIdx.y: the slot. Each thread copies one T at a time.
template <class T>
__global__ void __launch_bounds__(kThreads) copy_kernel(Slots slots) {
  const std::int64_t slot = blockIdx.y, member = slot / slots.each, bytes = slots.bound * slots.row_bytes;
  const auto count = min(max(std::int64_t{slots.counts[slot]}, std::int64_t{0}), slots.bound);
  const auto* const from = reinterpret_cast<const T*>(slots.from[member] + slot % slots.each * bytes);
  auto* const to = reinterpret_cast<T*>(slots.to + slot * bytes);
  const std::int64_t end = count * slots.row_bytes / static_cast<std::int64_t>(sizeof(T));
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < end; i += step) to[i] = from[i];
}

template <class T>
void enqueue(cudaStream_t stream, const Slots& slots, std::int64_t count) {
  const std::int64_t vectors = slots.bound * slots.row_bytes / static_cast<std::int64_t>(sizeof(T));
  const std::int64_t most = std::max<std::int64_t>(kCountedCopyBlocks / count, 1);
  const dim3 grid(static_cast<unsigned>(std::min((vectors + kThreads - 1) / kThreads, most)),
                  static_cast<unsigned>(count));
  copy_kernel<T><<<grid, kThreads, 0, stream>>>(slots);
  HAWSER_CUDA_CHECK(cudaPeekAtLastError());
}

bool aligned(const void* at) {
  return reinterpret_cast<std::uintptr_t>(at) % sizeof(uint4) == 0;
}

}  // namespace

void copy_counted_rows_cuda(void* stream, std::span<const std::byte* const> from, const CountedRows& to) {
  const auto members = static_cast<std::int64_t>(from.size());
  Slots slots{.each = to.counts.elements() / members,
              .bound = to.rows.size(0) / to.counts.elements(),
              .row_bytes = to.rows.size(1) * size_of(to.rows.dtype())};
  const std::int64_t bytes = slots.bound * slots.row_bytes;
  const bool wide = slots.row_bytes % static_cast<std::int64_t>(sizeof(uint4)) == 0 && aligned(to.rows.raw()) &&
                    std::ranges::all_of(from, aligned);
  for (std::size_t first = 0; first < from.size(); first += kMembers) {
    const std::size_t count = std::min(kMembers, from.size() - first);
    std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(first), count, slots.from);
    const std::int64_t before = static_cast<std::int64_t>(first) * slots.each;
    slots.to = to.rows.raw() + before * bytes;
    slots.counts = to.counts.data<std::int32_t>() + before;
    const std::int64_t of_slots = static_cast<std::int64_t>(count) * slots.each;
    if (wide) {
      enqueue<uint4>(static_cast<cudaStream_t>(stream), slots, of_slots);
    } else {
      enqueue<std::byte>(static_cast<cudaStream_t>(stream), slots, of_slots);
    }
  }
}

}  // namespace hawser::comm
