#include <cuda_runtime.h>

#include <algorithm>
#include <vector>

#include "comm/cuda/counted_rows_cuda.h"
#include "device/cuda/cuda_check.h"

namespace hawser::comm {

namespace {

constexpr int kThreads = 512;
constexpr std::size_t kSources = 64;  // of one launch

// Slots of one launch: `each` of a source. Without offsets, slot i has rows [i * most, (i + 1) * most).
struct Slots {
  CountedSource from[kSources];
  std::byte* to;
  const std::int32_t *to_offsets, *counts;
  std::int64_t each, from_rows, to_rows, first, most, row_bytes;
};

// blockIdx.y: the slot. Each thread copies one T at a time.
template <class T>
__global__ void __launch_bounds__(kThreads) copy_kernel(Slots slots) {
  const std::int64_t slot = blockIdx.y, g = slot % slots.each;
  const CountedSource source = slots.from[slot / slots.each];
  std::int64_t from = g * slots.most, to = slot * slots.most;
  std::int64_t count = min(std::int64_t{slots.counts[slot]} - slots.first, slots.most);
  if (source.offsets != nullptr) {
    from = source.offsets[g] + slots.first;
    count = min(count, slots.from_rows - from);
  }
  if (slots.to_offsets != nullptr) {
    to = slots.to_offsets[slot] + slots.first;
    count = min(count, slots.to_rows - to);
  }
  if (from < 0 || to < 0) return;
  const auto* const x = reinterpret_cast<const T*>(source.rows + from * slots.row_bytes);
  auto* const y = reinterpret_cast<T*>(slots.to + to * slots.row_bytes);
  const std::int64_t end = count * slots.row_bytes / static_cast<std::int64_t>(sizeof(T));
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < end; i += step) y[i] = x[i];
}

template <class T>
void enqueue(cudaStream_t stream, const Slots& slots, std::int64_t count) {
  const std::int64_t vectors = slots.most * slots.row_bytes / static_cast<std::int64_t>(sizeof(T));
  const std::int64_t blocks = std::max<std::int64_t>(kCountedCopyBlocks / count, 1);
  const dim3 grid(static_cast<unsigned>(std::min((vectors + kThreads - 1) / kThreads, blocks)),
                  static_cast<unsigned>(count));
  copy_kernel<T><<<grid, kThreads, 0, stream>>>(slots);
  HAWSER_CUDA_CHECK(cudaPeekAtLastError());
}

bool aligned(const void* at) {
  return reinterpret_cast<std::uintptr_t>(at) % sizeof(uint4) == 0;
}

// `all`: with the members that all launches have in common, and those of the first slot of all.
void copy(void* stream, std::span<const CountedSource> from, const Slots& all) {
  const bool wide = all.row_bytes % static_cast<std::int64_t>(sizeof(uint4)) == 0 && aligned(all.to) &&
                    std::ranges::all_of(from, [](const CountedSource& source) { return aligned(source.rows); });
  for (std::size_t first = 0; first < from.size(); first += kSources) {
    const std::size_t count = std::min(kSources, from.size() - first);
    Slots slots = all;
    std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(first), count, slots.from);
    const std::int64_t before = static_cast<std::int64_t>(first) * slots.each;
    slots.counts += before;
    if (slots.to_offsets != nullptr) {
      slots.to_offsets += before;
    } else {
      slots.to += before * slots.most * slots.row_bytes;
    }
    const std::int64_t of_slots = static_cast<std::int64_t>(count) * slots.each;
    if (wide) {
      enqueue<uint4>(static_cast<cudaStream_t>(stream), slots, of_slots);
    } else {
      enqueue<std::byte>(static_cast<cudaStream_t>(stream), slots, of_slots);
    }
  }
}

std::int64_t row_bytes(const CountedRows& rows) {
  return rows.rows.size(1) * size_of(rows.rows.dtype());
}

}  // namespace

void copy_counted_rows_cuda(void* stream, std::span<const CountedSource> from, std::int64_t rows, const CountedRows& to,
                            std::int64_t bound) {
  copy(stream, from,
       {.to = to.rows.raw(),
        .to_offsets = to.offsets.data<std::int32_t>(),
        .counts = to.counts.data<std::int32_t>(),
        .each = to.counts.elements() / static_cast<std::int64_t>(from.size()),
        .from_rows = rows,
        .to_rows = to.rows.size(0),
        .first = 0,
        .most = bound,
        .row_bytes = row_bytes(to)});
}

// Each slot is a source: a launch has at most kSources.
void pack_counted_rows_cuda(void* stream, const CountedRows& from, std::int64_t first, std::int64_t count,
                            std::byte* parts) {
  std::vector<CountedSource> sources;
  for (std::int64_t slot = 0; slot < from.counts.elements(); ++slot) {
    sources.push_back({from.rows.raw(), from.offsets.data<std::int32_t>() + slot});
  }
  copy(stream, sources,
       {.to = parts,
        .to_offsets = nullptr,
        .counts = from.counts.data<std::int32_t>(),
        .each = 1,
        .from_rows = from.rows.size(0),
        .to_rows = 0,
        .first = first,
        .most = count,
        .row_bytes = row_bytes(from)});
}

void unpack_counted_rows_cuda(void* stream, const std::byte* parts, std::int64_t first, std::int64_t count,
                              const CountedRows& to) {
  const CountedSource from[] = {{parts, nullptr}};
  copy(stream, from,
       {.to = to.rows.raw(),
        .to_offsets = to.offsets.data<std::int32_t>(),
        .counts = to.counts.data<std::int32_t>(),
        .each = to.counts.elements(),
        .from_rows = 0,
        .to_rows = to.rows.size(0),
        .first = first,
        .most = count,
        .row_bytes = row_bytes(to)});
}

}  // namespace hawser::comm
