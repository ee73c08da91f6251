#include <cooperative_groups.h>

#include "ops/cuda/bulk_copy.cuh"
#include "ops/cuda/kernel.cuh"
#include "ops/loss/softmax_cuda.h"

namespace hawser::ops::cuda {

namespace {

constexpr int kThreads = 512;
constexpr int kPieces = 4;  // a block's part of a row arrives in so many pieces
constexpr int kVector = 4;  // float32 logits in 16 bytes
constexpr int kEach = 8;    // gradients a thread writes at once

// float32 keeps the accurate exponential; under bf16 the fast one's error is lost.
template <class Act>
__device__ __forceinline__ float exponential(float x) {
  if constexpr (std::is_same_v<Act, Bf>) {
    return __expf(x);
  } else {
    return expf(x);
  }
}

// A running maximum and the sum of exp(x - most).
struct Running {
  float most = -INFINITY, sum = 0;
};

template <class Act>
__device__ __forceinline__ Running join(Running a, Running b) {
  const float most = fmaxf(a.most, b.most);
  if (most == -INFINITY) return {};
  return {most, a.sum * exponential<Act>(a.most - most) + b.sum * exponential<Act>(b.most - most)};
}

template <class Act>
__device__ __forceinline__ void take(Running& r, const Vec<float, kVector>& x) {
  const float high = fmaxf(fmaxf(x.v[0], x.v[1]), fmaxf(x.v[2], x.v[3]));
  if (high > r.most) {
    r.sum *= exponential<Act>(r.most - high);
    r.most = high;
  }
  if (r.most == -INFINITY) return;
#pragma unroll
  for (int i = 0; i < kVector; ++i) r.sum += exponential<Act>(x.v[i] - r.most);
}

// Over the block, the same bits in every thread.
template <class Act>
__device__ Running block_join(Running r, Running* shared) {
  const auto over_warp = [&] {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      const Running other{__shfl_xor_sync(0xffffffffu, r.most, offset), __shfl_xor_sync(0xffffffffu, r.sum, offset)};
      // The lower lane's part is the first argument in both, so that both get the same bits.
      r = (threadIdx.x & offset) == 0 ? join<Act>(r, other) : join<Act>(other, r);
    }
  };
  over_warp();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = r;
  __syncthreads();
  r = threadIdx.x % 32 < kThreads / 32 ? shared[threadIdx.x % 32] : Running{};
  over_warp();
  return r;
}

struct Call {
  SoftmaxRows rows;
  int part;  // logits of a row that one block holds, a multiple of kEach
  CudaFault* fault;
};

// A cluster of blocks takes a row, each a part that it keeps in shared memory: the row is read once. What is written
// over the row is written after all of the cluster have read their parts.
template <class Act, bool Gradients>
__global__ void __launch_bounds__(kThreads, 3) softmax_kernel(Call call) {
  extern __shared__ float4 memory[];
  __shared__ CopyBarrier full[kPieces];
  __shared__ Running warps[32], mine, all[8];
  const SoftmaxRows& a = call.rows;
  const auto cluster = cooperative_groups::this_cluster();
  const int blocks = static_cast<int>(cluster.num_blocks()), rank = static_cast<int>(cluster.block_rank());
  const std::int64_t t = blockIdx.x / blocks;
  float* const row = a.logits + t * a.stride;
  Act* const out = reinterpret_cast<Act*>(row) + (std::is_same_v<Act, Bf> ? a.stride : 0);
  const std::int64_t begin = static_cast<std::int64_t>(rank) * call.part;
  const std::int64_t left = a.stride - begin;
  const int size = left <= 0 ? 0 : left < call.part ? static_cast<int>(left) : call.part;
  const std::int64_t counted = a.vocabulary - begin;  // logits from here on are no logits
  const std::int32_t label = a.labels[t];
  if (label < 0 || !in_range(call.fault, CudaFault::cross_entropy, label, a.first_token + t, a.vocabulary)) {
    if (rank == 0 && threadIdx.x == 0) a.losses[t] = 0;
    if (Gradients) {
      for (int i = threadIdx.x * kEach; i < size; i += kThreads * kEach)
        store_float<kEach>(out + begin + i, Vec<float, kEach>{});
    }
    return;
  }
  float* const logits = reinterpret_cast<float*>(memory);
  const int piece = (call.part / kPieces + kEach) / kEach * kEach;
  if (threadIdx.x == 0) {
    for (CopyBarrier& barrier : full) barrier.make();
    CopyBarrier::fence_made();
    for (int p = 0; p * piece < size; ++p) {
      const unsigned bytes = 4u * static_cast<unsigned>(min(piece, size - p * piece));
      full[p].expect(bytes);
      full[p].copy(logits + p * piece, row + begin + p * piece, bytes);
    }
  }
  const float target = rank == 0 && threadIdx.x == 0 ? row[label] : 0;
  __syncthreads();
  Running r;
  for (int p = 0; p * piece < size; ++p) {
    full[p].wait(0);
    const int end = min(size, (p + 1) * piece);
    for (int i = p * piece + threadIdx.x * kVector; i < end; i += kThreads * kVector) {
      Vec<float, kVector> x = load<kVector>(logits + i);
      if (i + kVector > counted) {
#pragma unroll
        for (int e = 0; e < kVector; ++e) {
          if (i + e >= counted) x.v[e] = -INFINITY;
        }
      }
      take<Act>(r, x);
    }
  }
  r = block_join<Act>(r, warps);
  if (threadIdx.x == 0) mine = r;
  cluster.sync();
  if (threadIdx.x < blocks) all[threadIdx.x] = *cluster.map_shared_rank(&mine, threadIdx.x);
  auto token = cluster.barrier_arrive();  // nobody leaves before all have read
  __syncthreads();
  r = {};
  for (int b = 0; b < blocks; ++b) r = join<Act>(r, all[b]);
  if (rank == 0 && threadIdx.x == 0) {
    a.losses[t] = static_cast<double>(r.most) - static_cast<double>(target) + log(static_cast<double>(r.sum));
  }
  if (Gradients) {
    const float by = *a.scale / r.sum;
    const std::int64_t hot = label - begin;
    for (int i = threadIdx.x * kEach; i < size; i += kThreads * kEach) {
      Vec<float, kEach> x = load<kEach>(logits + i);
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        x.v[e] = exponential<Act>(x.v[e] - r.most) * by;
        if (i + e == hot) x.v[e] -= *a.scale;
      }
      store_float<kEach>(out + begin + i, x);
    }
  }
  cluster.barrier_wait(std::move(token));
}

template <class Act, bool Gradients>
void launch(const CudaNative& native, const Call& call, int blocks) {
  const auto kernel = softmax_kernel<Act, Gradients>;
  const int bytes = call.part * 4;
  HAWSER_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(call.rows.rows * blocks));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<std::size_t>(bytes);
  config.stream = stream_of(native);
  config.attrs = &cluster;
  config.numAttrs = 1;
  HAWSER_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, call));
}

}  // namespace

void softmax_rows(const CudaNative& native, const SoftmaxRows& args) {
  if (args.rows == 0) return;
  HAWSER_CHECK(args.vocabulary <= kMostVocabulary, "linear_cross_entropy: a vocabulary of ", args.vocabulary,
               "; CUDA takes at most ", kMostVocabulary);
  HAWSER_CHECK(args.rows < (std::int64_t{1} << 28), "linear_cross_entropy: ", args.rows, " rows at once");
  // Three blocks a multiprocessor, so that one's reading hides behind the others' work.
  int blocks = 1;
  while (blocks < 8 && args.stride > 18432 * blocks) blocks *= 2;
  const Call call{args, static_cast<int>(round_up(ceil_div(args.stride, blocks), kEach)), native.fault};
  with_float(args.act, [&](auto tag) {
    if (args.scale != nullptr) {
      launch<decltype(tag), true>(native, call, blocks);
    } else {
      launch<decltype(tag), false>(native, call, blocks);
    }
  });
}

}  // namespace hawser::ops::cuda
