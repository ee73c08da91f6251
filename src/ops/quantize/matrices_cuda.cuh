// What CUDA kernels over the matrices of a range (matrices.h) share: which matrix an element is in, and the maxima of
// matrices.
//
// A block has consecutive elements, nearly always of one matrix. Its first thread looks for the matrix while the loads
// of the block are on their way; then all threads take matrix in one maximum. A block with elements of several matrices
// records them one by one. So memory traffic bounds the kernels, as if there were one matrix (measured:
// docs/performance.md). A maximum does not depend on the order of the blocks.
#pragma once

#include "ops/quantize/matrices.h"
#include "ops/quantize/quantize_tiles.cuh"

namespace hawser::ops::cuda {

// A list of EqualMatrices as an argument of kernels.
struct MatrixTable {
  static constexpr int kRuns = 16;
  struct Run {
    std::int64_t begin, end, size, first;
    double inverse;  // 1 / size
  };
  Run runs[kRuns];
  int count = 0;
};

// Calls launch(begin, end, table) for ranges that cover [0, count), in order: for one, unless the list is longer than a
// table.
template <class Launch>
void each_table(const std::vector<EqualMatrices>& matrices, std::int64_t count, const Launch& launch) {
  std::size_t next = 0;
  for (std::int64_t begin = 0; begin < count;) {
    MatrixTable table;
    for (; table.count < MatrixTable::kRuns && next < matrices.size(); ++next) {
      const EqualMatrices& run = matrices[next];
      table.runs[table.count++] = {run.begin, run.end(), run.size, run.first, 1.0 / static_cast<double>(run.size)};
    }
    const std::int64_t end = next < matrices.size() ? std::clamp(matrices[next].begin, begin, count) : count;
    if (begin < end) launch(begin, end, table);
    begin = end;
  }
}

// The index of an element's matrix, -1 for none. That of the elements up to `end`, too.
struct DimSlice {
  std::int64_t index, end;
};

__device__ __forceinline__ DimSlice part_of(const MatrixTable& table, std::int64_t element) {
  for (int r = 0; r < table.count; ++r) {
    const MatrixTable::Run& run = table.runs[r];
    if (element < run.begin) return {-1, run.begin};
    if (element >= run.end) continue;
    // A quotient below 2^53, one off at most; a division of 64 bits would take more registers than the kernels have.
    const std::int64_t inside = element - run.begin;
    auto i = static_cast<std::int64_t>(static_cast<double>(inside) * run.inverse);
    if (i * run.size > inside) --i;
    if ((i + 1) * run.size <= inside) ++i;
    return {run.first + i, run.begin + (i + 1) * run.size};
  }
  return {-1, INT64_MAX};
}

// That of the block's first element, in all of its threads. Has a barrier: loads come before it.
__device__ __forceinline__ DimSlice part_of_block(const MatrixTable& table, std::int64_t first, DimSlice& shared) {
  if (threadIdx.x == 0) shared = part_of(table, first);
  __syncthreads();
  return shared;
}

// Raises the amaxes of matrices to the magnitudes of a block's values. All kTileThreads threads call each function.
class PartMaxima {
 public:
  struct Memory {
    DimSlice matrix;
    std::uint32_t warps[32];
  };

  // Of a block that has elements [first, last).
  __device__ __forceinline__ PartMaxima(const MatrixTable& table, float* amax, std::int64_t first, std::int64_t last,
                                        Memory& memory)
      : table_(table), amax_(amax), memory_(memory), part_(part_of_block(table, first, memory.matrix)) {
    alone_ = last <= part_.end;
    // Most blocks have no larger value than earlier ones, and write nothing.
    if (threadIdx.x == 0 && part_.index >= 0) before_ = size_bits(__ldcg(amax_ + part_.index));
  }

  // Values of elements [at, at + N); zeros after the block's last one.
  template <int N>
  __device__ __forceinline__ void take(std::int64_t at, const Vec<float, N>& values) {
    if (alone_) {
#pragma unroll
      for (int i = 0; i < N; ++i) found_ = max(found_, size_bits(values.v[i]));
      return;
    }
    for (int i = 0; i < N; ++i) {
      const std::int64_t index = part_of(table_, at + i).index;
      if (index >= 0) take_maximum(amax_ + index, size_bits(values.v[i]));
    }
  }

  // After the last take().
  __device__ __forceinline__ void finish() {
    if (!alone_ || part_.index < 0) return;
    const std::uint32_t most = block_max(found_, memory_.warps);
    if (threadIdx.x == 0 && most > before_) take_maximum(amax_ + part_.index, most);
  }

 private:
  const MatrixTable& table_;
  float* amax_;
  Memory& memory_;
  DimSlice part_;
  bool alone_ = false;  // all elements are of part_
  std::uint32_t found_ = 0, before_ = 0;
};

}  // namespace hawser::ops::cuda
