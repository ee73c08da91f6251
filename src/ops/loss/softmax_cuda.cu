#include <cooperative_groups.h>

#include "ops/cuda/bulk_copy.cuh"
#include "ops/cuda/kernel.cuh"
#include "ops/loss/linear_cross_entropy.h"
#include "ops/loss/softcap_cuda.cuh"
#include "ops/loss/softmax_cuda.h"

namespace hawser::ops::cuda {

namespace {

constexpr int kThreads = 512;
constexpr int kPieces = 4;  // pieces in which a block's part of a row is loaded
constexpr int kVector = 4;  // float32 logits in 16 bytes
constexpr int kEach = 8;    // parts and pieces are multiples of this

// exp(x - level). float32 uses the accurate exponential; bf16 uses one FMA and the hardware's power of two.
template <class Act>
class Exponential {
 public:
  __device__ explicit Exponential(float level) : level_(std::is_same_v<Act, Bf> ? -level * kLog2E : level) {}
  __device__ __forceinline__ float operator()(float x) const {
    if constexpr (std::is_same_v<Act, Bf>) {
      float out;
      asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(fmaf(x, kLog2E, level_)));
      return out;
    } else {
      return expf(x - level_);
    }
  }

 private:
  static constexpr float kLog2E = 1.4426950408889634f;
  float level_;
};

// Reduces over the block, with the same bits in every thread: exchange partners combine the same two values. There is a
// barrier before the reads of `shared` and none after them.
template <class Combine>
__device__ __forceinline__ float over_block(float value, float* shared, float nothing, const Combine& combine) {
  const auto over_warp = [&] {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      value = combine(value, __shfl_xor_sync(0xffffffffu, value, offset));
    }
  };
  over_warp();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  value = threadIdx.x % 32 < kThreads / 32 ? shared[threadIdx.x % 32] : nothing;
  over_warp();
  return value;
}

// A maximum and the sum of exp(x - maximum).
struct Sum {
  float maximum, sum;
};

struct Call {
  SoftmaxRows rows;
  int part;  // logits of a row that one block holds, a multiple of kEach
  CudaFault* fault;
};

template <class Form>
constexpr bool kPlain = std::is_same_v<Form, PlainLogits>;

// Memory traffic is the bound to approach, so the kernel reads a logit once and writes its gradient once; it reaches
// about 0.7 of the copy rate (measured: docs/performance.md). A row of float32 logits may exceed the shared memory of
// an SM: a cluster of up to 8 blocks has one row at a time, each block a part of it in shared memory. Threads pass over
// the part for the maximum (unless kPlain, z replaces the logits in shared memory then), for the sum of exponentials
// and for the gradients. Gradients overwrite the row only after all blocks have read their parts and exchanged maxima
// and sums. The copy of a piece of the next row starts when this row's gradients of the piece are written, or, without
// gradients, when the sum is complete. Three blocks of an SM overlap copies with work.
// The stride alone fixes the elements of each thread and the order of sums, whatever the number of clusters.
// Limits: clusters and bulk copies need compute capability 9.0; strides above 147,456 leave space for fewer blocks.
template <class Act, bool Gradients, class Form>
__global__ void __launch_bounds__(kThreads, 3) softmax_kernel(Call call, Form form) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ float4 memory[];
  __shared__ CopyBarrier full[kPieces];
  __shared__ float warps[2][32];
  __shared__ Sum mine, all[8];
  const SoftmaxRows& a = call.rows;
  const auto cluster = cooperative_groups::this_cluster();
  const int blocks = static_cast<int>(cluster.num_blocks()), rank = static_cast<int>(cluster.block_rank());
  const std::int64_t begin = static_cast<std::int64_t>(rank) * call.part, step = gridDim.x / blocks;
  const int size = static_cast<int>(max(min(a.stride - begin, static_cast<std::int64_t>(call.part)), std::int64_t{0}));
  // Columns from here on are padding.
  const int counted =
      static_cast<int>(max(min(a.vocabulary - begin, static_cast<std::int64_t>(size)), std::int64_t{0}));
  float* const logits = reinterpret_cast<float*>(memory);
  const int piece = (call.part / kPieces + kEach) / kEach * kEach;
  const auto fetch = [&](std::int64_t t, int p) {
    const unsigned bytes = 4u * static_cast<unsigned>(min(piece, size - p * piece));
    full[p].expect(bytes);
    full[p].copy(logits + p * piece, a.logits + t * a.stride + begin + p * piece, bytes);
  };
  const auto masked = [&](int i) {
    Vec<float, kVector> x = load<kVector>(logits + i);
    if (i + kVector > counted) {
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        if (i + e >= counted) x.v[e] = -INFINITY;
      }
    }
    return x;
  };
  const auto adjust = [&](int i) {
    Vec<float, kVector> x = load<kVector>(logits + i);
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      if (i + e < counted) x.v[e] = form(x.v[e], begin + i + e);
    }
    store<kVector>(logits + i, x);
  };
  std::int64_t t = blockIdx.x / blocks;
  if (threadIdx.x == 0) {
    for (CopyBarrier& barrier : full) barrier.make();
    CopyBarrier::fence_made();
    for (int p = 0; p * piece < size; ++p) fetch(t, p);
  }
  __syncthreads();
  std::int32_t next_label = a.labels[t];
  for (unsigned phase = 0; t < a.rows; t += step, phase ^= 1) {
    const std::int32_t label = next_label;
    const bool more = t + step < a.rows;
    if (more) next_label = a.labels[t + step];
    const bool counts =
        label >= 0 && in_range(call.fault, CudaFault::cross_entropy, label, a.first_token + t, a.vocabulary);
    float* const row = a.logits + t * a.stride;
    const float target = counts && rank == 0 && threadIdx.x == 0 ? form(row[label], label) : 0;
    float maximum = -INFINITY;
    for (int p = 0; p * piece < size; ++p) {
      full[p].wait(phase);
      const int end = min(size, (p + 1) * piece);
      for (int i = p * piece + threadIdx.x * kVector; i < end; i += kThreads * kVector) {
        if constexpr (!kPlain<Form>) adjust(i);
        const Vec<float, kVector> x = masked(i);
        maximum = fmaxf(maximum, fmaxf(fmaxf(x.v[0], x.v[1]), fmaxf(x.v[2], x.v[3])));
      }
    }
    if constexpr (!kPlain<Form>) CopyBarrier::fence_written();
    maximum = over_block(maximum, warps[0], -INFINITY, [](float x, float y) { return fmaxf(x, y); });
    // If all logits are -inf, the base is 0. A NaN among the logits makes the sum NaN, and so the loss.
    const Exponential<Act> here(maximum == -INFINITY ? 0 : maximum);
    Vec<float, kVector> sums{};
#pragma unroll 2
    for (int i = threadIdx.x * kVector; i < size; i += kThreads * kVector) {
      const Vec<float, kVector> x = masked(i);
#pragma unroll
      for (int e = 0; e < kVector; ++e) sums.v[e] += here(x.v[e]);
    }
    const float sum = over_block((sums.v[0] + sums.v[1]) + (sums.v[2] + sums.v[3]), warps[1], 0.0f,
                                 [](float x, float y) { return x + y; });
    if (threadIdx.x == 0) mine = {maximum, sum};
    if (!Gradients && more && threadIdx.x == 0) {
      // All threads have read their logits: over_block has a barrier.
      for (int p = 0; p * piece < size; ++p) fetch(t + step, p);
    }
    cluster.sync();
    if (threadIdx.x < blocks) all[threadIdx.x] = *cluster.map_shared_rank(&mine, threadIdx.x);
    auto token = cluster.barrier_arrive();  // no block overwrites `mine` or exits before all have read it
    __syncthreads();
    for (int b = 0; b < blocks; ++b) maximum = fmaxf(maximum, all[b].maximum);
    const Exponential<Act> power(maximum);
    float total = 0;
    for (int b = 0; b < blocks; ++b) {
      total += all[b].maximum == -INFINITY ? all[b].sum : all[b].sum * power(all[b].maximum);
    }
    if (rank == 0 && threadIdx.x == 0) {
      a.losses[t] =
          counts ? static_cast<double>(maximum) - static_cast<double>(target) + log(static_cast<double>(total)) : 0.0;
    }
    if (Gradients) {
      Act* const out = reinterpret_cast<Act*>(row) + (std::is_same_v<Act, Bf> ? a.stride : 0) + begin;
      const float scale = *a.scale, by = scale / total;
      const int hot = static_cast<int>(label - begin);
      for (int p = 0; p * piece < size; ++p) {
        const int end = min(size, (p + 1) * piece);
        for (int i = p * piece + threadIdx.x * kVector; i < end; i += kThreads * kVector) {
          Vec<float, kVector> x = load<kVector>(logits + i);
          const Vec<float, kVector> z = x;
#pragma unroll
          for (int e = 0; e < kVector; ++e) x.v[e] = counts ? power(x.v[e]) * by : 0;
          if (counts && hot >= i && hot < i + kVector) {
#pragma unroll
            for (int e = 0; e < kVector; ++e) {
              if (i + e == hot) x.v[e] -= scale;
            }
          }
          if constexpr (!kPlain<Form>) {
#pragma unroll
            for (int e = 0; e < kVector; ++e) x.v[e] = counts ? x.v[e] * form.factor(z.v[e]) : 0;
          }
          store_float<kVector>(out + i, x);
        }
        __syncthreads();
        if (more && threadIdx.x == 0) fetch(t + step, p);
      }
    }
    cluster.barrier_wait(std::move(token));
  }
#else
  __trap();
#endif
}

// One block for each row, which it reads twice: for the maximum and the sum of exponentials together, and for the
// gradients. A row of 128,256 logits is in the L2 cache then. Gradients in bf16 take the upper half of the row's bytes:
// that of logit i lies at or above i, so the block goes down from the last column, and reads a step's logits before it
// writes their gradients.
// The stride alone fixes the elements of each thread and the order of sums.
template <class Act, bool Gradients, class Form>
__global__ void __launch_bounds__(kThreads) softmax_any_kernel(SoftmaxRows a, CudaFault* fault, Form form) {
  __shared__ float warps[2][32];
  for (std::int64_t t = blockIdx.x; t < a.rows; t += gridDim.x) {
    const std::int32_t label = a.labels[t];
    const bool counts = label >= 0 && in_range(fault, CudaFault::cross_entropy, label, a.first_token + t, a.vocabulary);
    float* const row = a.logits + t * a.stride;
    const float target = counts ? form(row[label], label) : 0;
    // Padding, from column `vocabulary` on, counts as -inf.
    const auto read = [&](std::int64_t i) {
      Vec<float, kVector> x = load<kVector>(row + i);
#pragma unroll
      for (int e = 0; e < kVector; ++e) x.v[e] = i + e < a.vocabulary ? x.v[e] : -INFINITY;
      return x;
    };
    const auto formed = [&](const Vec<float, kVector>& x, std::int64_t i) {
      Vec<float, kVector> z = x;
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        if (i + e < a.vocabulary) z.v[e] = form(x.v[e], i + e);
      }
      return z;
    };
    float maximum = -INFINITY, sum = 0;  // of this thread; the sum is that of exp(z - base of maximum)
    const auto base = [](float level) { return level == -INFINITY ? 0.0f : level; };
    for (std::int64_t i = threadIdx.x * kVector; i < a.stride; i += kThreads * kVector) {
      const Vec<float, kVector> z = formed(read(i), i);
      const float higher = fmaxf(maximum, fmaxf(fmaxf(z.v[0], z.v[1]), fmaxf(z.v[2], z.v[3])));
      if (higher > maximum) {
        if (maximum != -INFINITY) sum *= Exponential<Act>(higher)(maximum);
        maximum = higher;
      }
      const Exponential<Act> here(base(maximum));
      sum += (here(z.v[0]) + here(z.v[1])) + (here(z.v[2]) + here(z.v[3]));
    }
    const float mine = maximum;
    maximum = over_block(maximum, warps[0], -INFINITY, [](float x, float y) { return fmaxf(x, y); });
    const Exponential<Act> power(base(maximum));
    // A NaN among the logits makes the sum NaN, and so the loss.
    const float total =
        over_block(mine == -INFINITY ? sum : sum * power(mine), warps[1], 0.0f, [](float x, float y) { return x + y; });
    if (threadIdx.x == 0) {
      a.losses[t] =
          counts ? static_cast<double>(base(maximum)) - static_cast<double>(target) + log(static_cast<double>(total))
                 : 0.0;
    }
    if constexpr (Gradients) {
      Act* const out = reinterpret_cast<Act*>(row) + (std::is_same_v<Act, Bf> ? a.stride : 0);
      const float scale = *a.scale, by = scale / total;
      const std::int64_t step = kThreads * kVector;
      for (std::int64_t from = (a.stride - 1) / step * step; from >= 0; from -= step) {
        const std::int64_t i = from + threadIdx.x * kVector;
        Vec<float, kVector> z{};
        if (i < a.stride) z = formed(read(i), i);
        __syncthreads();
        if (i >= a.stride) continue;
        Vec<float, kVector> x;
#pragma unroll
        for (int e = 0; e < kVector; ++e) {
          x.v[e] = counts ? power(z.v[e]) * by - (i + e == label ? scale : 0) : 0;
          if constexpr (!kPlain<Form>) x.v[e] = counts && i + e < a.vocabulary ? x.v[e] * form.factor(z.v[e]) : 0;
        }
        store_float<kVector>(out + i, x);
      }
    }
    __syncthreads();  // `warps` is free again
  }
}

template <class Act, bool Gradients, class Form>
void launch(const CudaNative& native, const Call& call, int blocks, const Form& form) {
  if (native.limits.capability < 90) {
    const auto grid = static_cast<unsigned>(std::min<std::int64_t>(call.rows.rows, native.sm_count * 2));
    softmax_any_kernel<Act, Gradients><<<grid, kThreads, 0, stream_of(native)>>>(call.rows, native.fault, form);
    return;
  }
  const auto kernel = softmax_kernel<Act, Gradients, Form>;
  const int bytes = call.part * 4;
  allow_shared_memory(native, kernel, bytes);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<std::size_t>(bytes);
  config.stream = stream_of(native);
  config.attrs = &cluster;
  config.numAttrs = 1;
  int clusters = 0;  // number that can be resident
  HAWSER_CUDA_CHECK(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config));
  clusters = std::max(clusters, 1);
  config.gridDim.x = static_cast<unsigned>(std::min<std::int64_t>(clusters, call.rows.rows) * blocks);
  HAWSER_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, call, form));
}

}  // namespace

void softmax_rows(const CudaNative& native, const SoftmaxRows& args) {
  if (args.rows == 0) return;
  HAWSER_CHECK(args.vocabulary <= kCudaMaxVocabulary, "linear_cross_entropy: the vocabulary is ", args.vocabulary,
               "; CUDA supports at most ", kCudaMaxVocabulary);
  // Three blocks per SM, so that loads of one overlap with the work of the others.
  int blocks = 1;
  while (blocks < 8 && args.stride > 18432 * blocks) blocks *= 2;
  const Call call{args, static_cast<int>(round_up(ceil_div(args.stride, blocks), kEach)), native.fault};
  dispatch_device_float(args.act, [&](auto tag) {
    using Act = decltype(tag);
    const auto launch_form = [&](const auto& form) {
      if (args.scale != nullptr) {
        launch<Act, true>(native, call, blocks, form);
      } else {
        launch<Act, false>(native, call, blocks, form);
      }
    };
    if (args.bias == nullptr && args.softcap == 0) {
      launch_form(PlainLogits());
    } else {
      launch_form(CappedLogits<Act>(args.bias, args.softcap));
    }
  });
}

}  // namespace hawser::ops::cuda
