// CUDA kernels of the router. A warp has one row of logits at a time: lane l has those of experts l, l + 32, ..., V in
// all. A row is short, at most kMaxExperts logits, so it stays in registers from the softmax to the result (V = 32 at
// most), and maxima and sums over it are shuffles: top_k_kernel and backward_kernel use no shared memory and no barrier
// of the block. statistics_kernel sums over rows: a warp adds its rows in order, a block its warps, sum_partials the
// blocks.
#include <climits>

#include "ops/cuda/column_sums.cuh"
#include "ops/moe/router.h"

namespace hawser::ops::cuda {

namespace {

constexpr unsigned kAll = 0xffffffffu;
constexpr int kWarps = 8;  // of a block

struct RouterSizes {
  std::int64_t tokens;
  int experts, per_token;
};

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value = fmaxf(value, __shfl_xor_sync(kAll, value, offset));
  return value;
}

template <int V>
struct Row {
  float logits[V], p[V];
  float largest, sum;  // p = exp(logits - largest) / sum

  __device__ Row(const float* from, int experts) {
    const int lane = threadIdx.x % 32;
    largest = -INFINITY;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const int e = lane + 32 * v;
      logits[v] = e < experts ? from[e] : -INFINITY;
      largest = fmaxf(largest, logits[v]);
    }
    largest = warp_max(largest);
    sum = 0;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      p[v] = lane + 32 * v < experts ? expf(logits[v] - largest) : 0.0f;
      sum += p[v];
    }
    sum = warp_sum(sum);
#pragma unroll
    for (int v = 0; v < V; ++v) p[v] /= sum;
  }
  __device__ float logsumexp() const {
    return largest + logf(sum);
  }
};

struct Best {
  float value;
  int expert;  // INT_MAX: none
};
// The larger logit, of equal ones the lower expert.
__device__ __forceinline__ Best better(const Best& a, const Best& b) {
  if (a.expert == INT_MAX || (b.expert != INT_MAX && b.value > a.value)) return b;
  if (b.expert == INT_MAX || a.value > b.value) return a;
  return a.expert < b.expert ? a : b;
}

template <int V>
__global__ void __launch_bounds__(32 * kWarps)
    top_k_kernel(RouterSizes s, const float* logits, const std::int32_t* mask, std::int32_t* chosen, float* weights,
                 bool normalise) {
  const std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (t >= s.tokens) return;
  const int lane = threadIdx.x % 32, per_token = s.per_token;
  chosen += t * per_token;
  weights += t * per_token;
  if (mask != nullptr && mask[t] == 0) {
    for (int k = lane; k < per_token; k += 32) {
      chosen[k] = kNoExpert;
      weights[k] = 0;
    }
    return;
  }
  const Row<V> row(logits + t * s.experts, s.experts);
  unsigned taken = 0;  // bit v: expert lane + 32 v
  float total = 0;
  for (int k = 0; k < per_token; ++k) {
    Best best{0, INT_MAX};
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const int e = lane + 32 * v;
      if (e >= s.experts || (taken >> v & 1) != 0) continue;
      best = better(best, {row.logits[v], e});
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      best = better(best, {__shfl_xor_sync(kAll, best.value, offset), __shfl_xor_sync(kAll, best.expert, offset)});
    }
    // Comparisons with NaN may differ between lanes: all take lane 0's.
    const int expert = __shfl_sync(kAll, best.expert, 0);
    float own = 0;
#pragma unroll
    for (int v = 0; v < V; ++v) own = v == expert / 32 ? row.p[v] : own;
    const float p = __shfl_sync(kAll, own, expert % 32);
    if (lane == expert % 32) taken |= 1u << (expert / 32);
    total += p;
    if (lane == 0) {
      chosen[k] = expert;
      weights[k] = p;
    }
  }
  if (!normalise) return;
  __syncwarp();
  for (int k = lane; k < per_token; k += 32) weights[k] /= total;
}

// partial [blocks, stride]: the statistics of a block's rows. Counts are whole numbers, so their order does not matter.
template <int V>
__global__ void __launch_bounds__(32 * kWarps)
    statistics_kernel(RouterSizes s, const float* logits, const std::int32_t* chosen, float* partial,
                      std::int64_t stride) {
  extern __shared__ float memory[];
  auto* const counts = reinterpret_cast<int*>(memory);  // [experts]
  float* const sums = memory + s.experts;               // [warps, experts + 2]
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int e = threadIdx.x; e < s.experts; e += blockDim.x) counts[e] = 0;
  __syncthreads();
  float p[V] = {}, squares = 0, tokens = 0;
  for (std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp; t < s.tokens;
       t += static_cast<std::int64_t>(gridDim.x) * kWarps) {
    const std::int32_t* const of_token = chosen + t * s.per_token;
    if (of_token[0] < 0) continue;
    for (int k = lane; k < s.per_token; k += 32) {
      if (of_token[k] >= 0 && of_token[k] < s.experts) atomicAdd(&counts[of_token[k]], 1);
    }
    const Row<V> row(logits + t * s.experts, s.experts);
#pragma unroll
    for (int v = 0; v < V; ++v) p[v] += row.p[v];
    const float z = row.logsumexp();
    squares += z * z;
    tokens += 1;
  }
  float* const own = sums + warp * (s.experts + 2);
#pragma unroll
  for (int v = 0; v < V; ++v) {
    if (lane + 32 * v < s.experts) own[lane + 32 * v] = p[v];
  }
  if (lane == 0) {
    own[s.experts] = squares;
    own[s.experts + 1] = tokens;
  }
  __syncthreads();
  float* const out = partial + blockIdx.x * stride;
  for (int i = threadIdx.x; i < s.experts; i += blockDim.x) out[i] = static_cast<float>(counts[i]);
  for (int i = threadIdx.x; i < s.experts + 2; i += blockDim.x) {
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += sums[w * (s.experts + 2) + i];
    out[s.experts + i] = sum;
  }
}

struct Loss {
  const float *statistics, *scale;
  float *factors, *loss;
  int layers, experts;
  double share, balance, z;
  bool accumulate;
};

// One block. Each thread sums its statistics over the layers, in order.
__global__ void __launch_bounds__(1024) loss_kernel(Loss a) {
  extern __shared__ double sums[];  // [2 * experts + 2]
  __shared__ double shared[32];
  const int size = 2 * a.experts + 2;
  for (int i = threadIdx.x; i < size; i += blockDim.x) {
    double sum = 0;
    for (int l = 0; l < a.layers; ++l)
      sum += static_cast<double>(a.statistics[static_cast<std::int64_t>(l) * size + i]);
    sums[i] = sum;
  }
  __syncthreads();
  const double n = sums[size - 1], inverse = n > 0 ? 1 / n : 0;
  double balance = 0;
  for (int e = threadIdx.x; e < a.experts; e += blockDim.x)
    balance += sums[e] * inverse * sums[a.experts + e] * inverse;
  balance = block_sum(balance, shared) * a.experts;
  if (threadIdx.x == 0) {
    const double value = a.share * (a.balance * balance + a.z * sums[size - 2] * inverse);
    *a.loss = static_cast<float>(value + (a.accumulate ? static_cast<double>(*a.loss) : 0.0));
  }
  if (a.factors == nullptr) return;
  const double scale = a.share * (a.scale != nullptr ? static_cast<double>(*a.scale) : 1.0);
  for (int i = threadIdx.x; i < a.layers * (a.experts + 1); i += blockDim.x) {
    const int e = i % (a.experts + 1);
    a.factors[i] = static_cast<float>(e < a.experts ? scale * a.balance * a.experts * sums[e] * inverse * inverse
                                                    : scale * a.z * inverse);
  }
}

struct Backward {
  RouterSizes s;
  const float* logits;
  const std::int32_t* chosen;
  const float *weights, *dweights, *factors;
  float* dlogits;
  bool normalise;
};

template <int V>
__global__ void __launch_bounds__(32 * kWarps) backward_kernel(Backward a) {
  const std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (t >= a.s.tokens) return;
  const int lane = threadIdx.x % 32, per_token = a.s.per_token, experts = a.s.experts;
  const std::int32_t* const chosen = a.chosen + t * per_token;
  const float *const weights = a.weights + t * per_token, *const dweights = a.dweights + t * per_token;
  float* const dlogits = a.dlogits + t * experts;
  if (chosen[0] < 0) {
    for (int e = lane; e < experts; e += 32) dlogits[e] = 0;
    return;
  }
  const Row<V> row(a.logits + t * experts, experts);
  float dp[V], from_weights[V];  // gradients of p, and of the logits through the weights
#pragma unroll
  for (int v = 0; v < V; ++v) {
    dp[v] = a.factors != nullptr && lane + 32 * v < experts ? a.factors[lane + 32 * v] : 0.0f;
    from_weights[v] = 0;
  }
  float weighted = 0;
  for (int k = 0; k < per_token; ++k) weighted += weights[k] * dweights[k];
  for (int k = 0; k < per_token; ++k) {
    const int e = chosen[k];
    if (lane != e % 32) continue;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      if (v != e / 32) continue;
      if (a.normalise) {
        from_weights[v] = weights[k] * (dweights[k] - weighted);
      } else {
        dp[v] += dweights[k];
      }
    }
  }
  float mean = 0;
#pragma unroll
  for (int v = 0; v < V; ++v) mean += row.p[v] * dp[v];
  mean = warp_sum(mean);
  const float z = a.factors != nullptr ? 2 * a.factors[experts] * row.logsumexp() : 0.0f;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    if (lane + 32 * v < experts) dlogits[lane + 32 * v] = row.p[v] * (dp[v] - mean + z) + from_weights[v];
  }
}

RouterSizes sizes_of(const TensorView& logits, const TensorView& chosen) {
  return {logits.size(0), static_cast<int>(logits.size(1)), static_cast<int>(chosen.size(1))};
}

// Calls body with the number of logits of a lane as a constant.
template <class Body>
void dispatch_experts(int experts, const Body& body) {
  if (experts <= 32) return body(std::integral_constant<int, 1>());
  if (experts <= 128) return body(std::integral_constant<int, 4>());
  if (experts <= 256) return body(std::integral_constant<int, 8>());
  body(std::integral_constant<int, 32>());
}

unsigned blocks_of(std::int64_t tokens) {
  return static_cast<unsigned>(ceil_div(tokens, kWarps));
}

}  // namespace

void router_top_k(const CudaNative& native, const RouterTopK& args) {
  const RouterSizes s = sizes_of(args.logits, args.experts);
  if (s.tokens == 0) return;
  dispatch_experts(s.experts, [&](auto v) {
    top_k_kernel<decltype(v)::value><<<blocks_of(s.tokens), 32 * kWarps, 0, stream_of(native)>>>(
        s, args.logits.data<float>(), args.mask.empty() ? nullptr : args.mask.data<std::int32_t>(),
        args.experts.data<std::int32_t>(), args.weights.data<float>(), args.normalise);
  });
}

void router_statistics(const CudaNative& native, const RouterStatistics& args) {
  const RouterSizes s = sizes_of(args.logits, args.experts);
  const std::int64_t size = args.statistics.size(0), stride = round_up(size, 16);
  // About 32 rows a warp; a block per SM at most.
  const int blocks =
      static_cast<int>(std::clamp<std::int64_t>(ceil_div(s.tokens, 32 * kWarps), 1, std::min(native.sm_count, 256)));
  auto* const partial = Scratch(native).take<float>(blocks * stride);
  const auto shared = static_cast<int>(sizeof(float)) * (s.experts + kWarps * (s.experts + 2));
  dispatch_experts(s.experts, [&](auto v) {
    const auto kernel = statistics_kernel<decltype(v)::value>;
    allow_shared_memory(native, kernel, shared);
    kernel<<<blocks, 32 * kWarps, static_cast<std::size_t>(shared), stream_of(native)>>>(
        s, args.logits.data<float>(), args.experts.data<std::int32_t>(), partial, stride);
  });
  sum_partials(native, partial, blocks, stride, args.statistics, false, size);
}

void router_loss(const CudaNative& native, const RouterLoss& args) {
  const auto size = static_cast<int>(args.statistics.size(1));
  const Loss loss{.statistics = args.statistics.data<float>(),
                  .scale = args.scale.empty() ? nullptr : args.scale.data<float>(),
                  .factors = args.factors.empty() ? nullptr : args.factors.data<float>(),
                  .loss = args.loss.data<float>(),
                  .layers = static_cast<int>(args.statistics.size(0)),
                  .experts = static_cast<int>(experts_of_statistics(size)),
                  .share = args.share,
                  .balance = args.balance_coefficient,
                  .z = args.z_coefficient,
                  .accumulate = args.accumulate};
  loss_kernel<<<1, 1024, static_cast<std::size_t>(size) * sizeof(double), stream_of(native)>>>(loss);
}

void router_top_k_backward(const CudaNative& native, const RouterTopKBackward& args) {
  const Backward a{.s = sizes_of(args.logits, args.experts),
                   .logits = args.logits.data<float>(),
                   .chosen = args.experts.data<std::int32_t>(),
                   .weights = args.weights.data<float>(),
                   .dweights = args.dweights.data<float>(),
                   .factors = args.factors.empty() ? nullptr : args.factors.data<float>(),
                   .dlogits = args.dlogits.data<float>(),
                   .normalise = args.normalise};
  if (a.s.tokens == 0) return;
  dispatch_experts(a.s.experts, [&](auto v) {
    backward_kernel<decltype(v)::value><<<blocks_of(a.s.tokens), 32 * kWarps, 0, stream_of(native)>>>(a);
  });
}

}  // namespace hawser::ops::cuda
