// copy_counted_rows_cuda: what all_to_all_v (comm/group.h) receives, copied on a GPU. This header needs no CUDA
// headers.
#pragma once

#include <cstddef>
#include <span>

#include "comm/group.h"

namespace hawser::comm {

// Enqueues, on a cudaStream_t, for each slot of `to` the copy of its counted rows from the corresponding slot at
// from[m], of member m. The device reads the counts; those outside [0, bound] are clamped. The memory of from[m] may be
// that of another GPU. 16-byte aligned slots are fast.
void copy_counted_rows_cuda(void* stream, std::span<const std::byte* const> from, const CountedRows& to);

}  // namespace hawser::comm
