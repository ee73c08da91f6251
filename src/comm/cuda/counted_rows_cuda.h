// Kernels of all_to_all_v (comm/group.h) on a GPU. This header needs no CUDA headers. Each enqueues on a cudaStream_t.
// The device reads counts and offsets; slots are clamped to their bounds. 16-byte aligned rows are fast.
#pragma once

#include <cstddef>
#include <span>

#include "comm/group.h"

namespace hawser::comm {

// A member's slots for this one: those of slot g begin at row offsets[g]. The memory may be that of another GPU.
struct CountedSource {
  const std::byte* rows = nullptr;
  const std::int32_t* offsets = nullptr;
};

// Copies the rows of each slot of `to`, at most `bound`, from those of the member in from[m], which has `rows` rows.
void copy_counted_rows_cuda(void* stream, std::span<const CountedSource> from, std::int64_t rows, const CountedRows& to,
                            std::int64_t bound);

// Rows [first, first + count) of each slot of `from`, as far as it has them, to parts [slots, count, C], and from such
// parts to the slots of `to`.
void pack_counted_rows_cuda(void* stream, const CountedRows& from, std::int64_t first, std::int64_t count,
                            std::byte* parts);
void unpack_counted_rows_cuda(void* stream, const std::byte* parts, std::int64_t first, std::int64_t count,
                              const CountedRows& to);

}  // namespace hawser::comm
