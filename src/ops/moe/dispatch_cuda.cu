#include "ops/cuda/kernel.cuh"
#include "ops/moe/dispatch.h"

namespace hawser::ops::cuda {

namespace {

// ---- plan: a counting sort. A warp has a chunk of assignments and counts them by expert, in order. ----

constexpr int kChunk = 512;  // assignments of a warp
constexpr int kPlanWarps = 4;
constexpr unsigned kAll = 0xffffffffu;

struct Plan {
  const std::int32_t* chosen;
  std::int32_t *offsets, *rows, *assignments;
  std::int32_t* counts;  // [experts, chunks]: of a chunk; after the scan, the sum of the chunks before it
  std::int32_t* totals;  // [experts]
  std::int64_t count;    // of assignments
  int experts, chunks;
  CudaFault* fault;
};

// The expert of an assignment, -1 for none.
__device__ __forceinline__ int expert_of(const Plan& p, std::int64_t a) {
  const std::int32_t e = a < p.count ? p.chosen[a] : -1;
  return e != -1 && in_range(p.fault, CudaFault::expert_index, e, a, p.experts) ? e : -1;
}

// Calls place(assignment, expert, rank): the number of assignments before it in the chunk that have its expert. `seen`
// [experts] of the warp, zeroed.
template <class Place>
__device__ void walk(const Plan& p, int chunk, int* seen, const Place& place) {
  const int lane = threadIdx.x % 32;
  for (int i = 0; i < kChunk; i += 32) {
    const std::int64_t a = static_cast<std::int64_t>(chunk) * kChunk + i + lane;
    const int e = expert_of(p, a);
    const unsigned same = __match_any_sync(kAll, e);
    const int before = __popc(same & ((1u << lane) - 1));
    const int rank = e >= 0 ? seen[e] + before : 0;
    __syncwarp();
    if (e >= 0 && before == 0) seen[e] += __popc(same);
    __syncwarp();
    if (a < p.count) place(a, e, rank);
  }
}

__device__ int* seen_of_warp(const Plan& p) {
  extern __shared__ int seen[];
  int* const own = seen + threadIdx.x / 32 * p.experts;
  for (int e = threadIdx.x % 32; e < p.experts; e += 32) own[e] = 0;
  __syncwarp();
  return own;
}

__global__ void __launch_bounds__(32 * kPlanWarps) count_kernel(Plan p) {
  const int chunk = static_cast<int>(blockIdx.x) * kPlanWarps + threadIdx.x / 32;
  if (chunk >= p.chunks) return;
  int* const seen = seen_of_warp(p);
  walk(p, chunk, seen, [](std::int64_t, int, int) {});
  for (int e = threadIdx.x % 32; e < p.experts; e += 32) {
    p.counts[static_cast<std::int64_t>(e) * p.chunks + chunk] = seen[e];
  }
}

// The sum of the threads before this one; `total`: of all. blockDim.x: a multiple of 32. `shared` [32]. Begins with a
// barrier.
__device__ int exclusive_scan(int value, int* shared, int& total) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int sum = value;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int other = __shfl_up_sync(kAll, sum, offset);
    if (lane >= offset) sum += other;
  }
  __syncthreads();
  if (lane == 31) shared[warp] = sum;
  __syncthreads();
  int before = 0;
  total = 0;
  for (int w = 0; w < static_cast<int>(blockDim.x) / 32; ++w) {
    if (w < warp) before += shared[w];
    total += shared[w];
  }
  return before + sum - value;
}

// A block has one expert.
__global__ void __launch_bounds__(256) scan_kernel(Plan p) {
  __shared__ int shared[32];
  std::int32_t* const counts = p.counts + static_cast<std::int64_t>(blockIdx.x) * p.chunks;
  int before = 0;
  for (int begin = 0; begin < p.chunks; begin += blockDim.x) {
    const int chunk = begin + static_cast<int>(threadIdx.x);
    const int value = chunk < p.chunks ? counts[chunk] : 0;
    int total = 0;
    const int sum = exclusive_scan(value, shared, total);
    if (chunk < p.chunks) counts[chunk] = before + sum;
    before += total;
  }
  if (threadIdx.x == 0) p.totals[blockIdx.x] = before;
}

// One block of at least p.experts threads.
__global__ void __launch_bounds__(1024) offsets_kernel(Plan p) {
  __shared__ int shared[32];
  const int e = threadIdx.x;
  constexpr int kRows = static_cast<int>(kGroupRows);
  const int rows = e < p.experts ? (p.totals[e] + kRows - 1) / kRows * kRows : 0;
  int total = 0;
  const int before = exclusive_scan(rows, shared, total);
  if (e < p.experts) p.offsets[e] = before;
  if (e == 0) p.offsets[p.experts] = total;
}

__global__ void __launch_bounds__(32 * kPlanWarps) rows_kernel(Plan p) {
  const int chunk = static_cast<int>(blockIdx.x) * kPlanWarps + threadIdx.x / 32;
  if (chunk >= p.chunks) return;
  walk(p, chunk, seen_of_warp(p), [&](std::int64_t a, int e, int rank) {
    if (e < 0) {
      p.rows[a] = kNoRow;
      return;
    }
    const std::int32_t row = p.offsets[e] + p.counts[static_cast<std::int64_t>(e) * p.chunks + chunk] + rank;
    p.rows[a] = row;
    p.assignments[row] = static_cast<std::int32_t>(a);
  });
}

// ---- rows ----

template <class T>
Rows2<const T> reading(const TensorView& view) {
  const auto rows = rows2<T>(view);
  return {rows.data, rows.count, rows.columns, rows.stride};
}

const float* weights_of(const TensorView& weights) {
  return weights.empty() ? nullptr : weights.data<float>();
}

template <class Act, int N>
struct Dispatch {
  Rows2<const Act> x;
  Rows2<Act> y;
  const std::int32_t *assignments, *used;  // used: offsets[E]
  const float* weights;
  std::int64_t per_token;
  CudaFault* fault;

  __device__ void operator()(std::int64_t row, std::int64_t at) const {
    if (row >= *used) return;
    const std::int32_t a = assignments[row];
    Vec<Act, N> out{};
    if (a != -1) {
      if (!in_range(fault, CudaFault::expert_assignment, a, row, x.count * per_token)) return;
      out = load<N>(x.row(a / per_token) + at);
      if (weights != nullptr) {
        Vec<float, N> scaled = widen(out);
#pragma unroll
        for (int i = 0; i < N; ++i) scaled.v[i] *= weights[a];
        store_float<N>(y.row(row) + at, scaled);
        return;
      }
    }
    store<N>(y.row(row) + at, out);
  }
};

template <class X, class Residual, class Y, int N>
struct Combine {
  Rows2<const X> x;
  Rows2<const Residual> residual;
  Rows2<Y> y;
  const std::int32_t* rows;
  const float* weights;
  int per_token;
  CudaFault* fault;

  __device__ void operator()(std::int64_t t, std::int64_t at) const {
    Vec<float, N> sum{};
    if (residual.data != nullptr) sum = load_float<N>(residual.row(t) + at);
    for (int k = 0; k < per_token; ++k) {
      const std::int64_t a = t * per_token + k;
      const std::int32_t row = rows[a];
      if (row == kNoRow || !in_range(fault, CudaFault::expert_row, row, a, x.count)) continue;
      const Vec<float, N> value = load_float<N>(x.row(row) + at);
      const float weight = weights != nullptr ? weights[a] : 1.0f;
#pragma unroll
      for (int i = 0; i < N; ++i) sum.v[i] += weight * value.v[i];
    }
    store_float<N>(y.row(t) + at, sum);
  }
};

// A block has one assignment.
template <class Act, int N>
__global__ void __launch_bounds__(256) weighted_kernel(Rows2<const Act> x, Rows2<Act> dx, const std::int32_t* rows,
                                                       const float* weights, float* dweights, CudaFault* fault) {
  __shared__ float shared[32];
  const std::int64_t a = blockIdx.x;
  const std::int32_t row = rows[a];
  if (row == kNoRow || !in_range(fault, CudaFault::expert_row, row, a, x.count)) {
    if (threadIdx.x == 0) dweights[a] = 0;
    return;
  }
  const float weight = weights[a];
  float dot = 0;
  for (std::int64_t at = static_cast<std::int64_t>(threadIdx.x) * N; at < x.columns;
       at += static_cast<std::int64_t>(blockDim.x) * N) {
    const Vec<float, N> value = load_float<N>(x.row(row) + at);
    Vec<float, N> gradient = load_float<N>(dx.row(row) + at);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      dot += value.v[i] * gradient.v[i];
      gradient.v[i] *= weight;
    }
    store_float<N>(dx.row(row) + at, gradient);
  }
  dot = block_sum(dot, shared);
  if (threadIdx.x == 0) dweights[a] = dot;
}

}  // namespace

void expert_plan(const CudaNative& native, const ExpertPlan& args) {
  const auto experts = static_cast<int>(args.offsets.size(0) - 1);
  HAWSER_CHECK(experts <= 1024, "expert_plan: ", experts, " experts");
  Plan p{.chosen = args.experts.data<std::int32_t>(),
         .offsets = args.offsets.data<std::int32_t>(),
         .rows = args.rows.data<std::int32_t>(),
         .assignments = args.assignments.data<std::int32_t>(),
         .counts = nullptr,
         .totals = nullptr,
         .count = args.experts.elements(),
         .experts = experts,
         .chunks = static_cast<int>(ceil_div(args.experts.elements(), kChunk)),
         .fault = native.fault};
  Scratch scratch(native);
  p.counts = scratch.take<std::int32_t>(static_cast<std::int64_t>(p.chunks) * experts);
  p.totals = scratch.take<std::int32_t>(experts);
  const cudaStream_t stream = stream_of(native);
  const auto blocks = static_cast<unsigned>(ceil_div(p.chunks, kPlanWarps));
  const std::size_t shared = sizeof(int) * kPlanWarps * static_cast<std::size_t>(experts);
  HAWSER_CUDA_CHECK(cudaMemsetAsync(p.assignments, 0xff, static_cast<std::size_t>(args.assignments.bytes()), stream));
  if (blocks > 0) count_kernel<<<blocks, 32 * kPlanWarps, shared, stream>>>(p);
  scan_kernel<<<static_cast<unsigned>(experts), 256, 0, stream>>>(p);
  offsets_kernel<<<1, static_cast<unsigned>(round_up(experts, 32)), 0, stream>>>(p);
  if (blocks > 0) rows_kernel<<<blocks, 32 * kPlanWarps, shared, stream>>>(p);
}

void dispatch_rows(const CudaNative& native, const DispatchRows& args) {
  dispatch_device_float(args.x.dtype(), [&](auto tag) {
    using Act = decltype(tag);
    const auto launch = [&]<int N>(std::integral_constant<int, N>) {
      const auto y = rows2<Act>(args.y);
      map<N>(native, y.count, y.columns,
             Dispatch<Act, N>{.x = reading<Act>(args.x),
                              .y = y,
                              .assignments = args.assignments.data<std::int32_t>(),
                              .used = args.offsets.data<std::int32_t>() + args.offsets.size(0) - 1,
                              .weights = weights_of(args.weights),
                              .per_token = args.per_token,
                              .fault = native.fault});
    };
    constexpr int kWide = 16 / sizeof(Act);
    if (aligned<kWide>({args.x, args.y})) {
      launch(std::integral_constant<int, kWide>());
    } else {
      launch(std::integral_constant<int, 1>());
    }
  });
}

void combine_rows(const CudaNative& native, const CombineRows& args) {
  dispatch_device_float(args.x.dtype(), [&](auto x_tag) {
    dispatch_device_float(args.residual.empty() ? DType::f32 : args.residual.dtype(), [&](auto residual_tag) {
      dispatch_device_float(args.y.dtype(), [&](auto y_tag) {
        using X = decltype(x_tag);
        using Residual = decltype(residual_tag);
        using Y = decltype(y_tag);
        const auto launch = [&]<int N>(std::integral_constant<int, N>) {
          const auto y = rows2<Y>(args.y);
          map<N>(native, y.count, y.columns,
                 Combine<X, Residual, Y, N>{.x = reading<X>(args.x),
                                            .residual = reading<Residual>(args.residual),
                                            .y = y,
                                            .rows = args.rows.data<std::int32_t>(),
                                            .weights = weights_of(args.weights),
                                            .per_token = static_cast<int>(args.rows.size(1)),
                                            .fault = native.fault});
        };
        // 8 elements: 16 bytes of bf16, 32 of float32.
        if (aligned<8>({args.x, args.residual, args.y})) {
          launch(std::integral_constant<int, 8>());
        } else {
          launch(std::integral_constant<int, 1>());
        }
      });
    });
  });
}

void weighted_rows_backward(const CudaNative& native, const WeightedRowsBackward& args) {
  const std::int64_t count = args.rows.elements();
  if (count == 0) return;
  dispatch_device_float(args.x.dtype(), [&](auto tag) {
    using Act = decltype(tag);
    constexpr int kWide = 16 / sizeof(Act);
    const auto launch = [&](auto kernel, int n) {
      const std::int64_t threads = std::clamp<std::int64_t>(round_up(ceil_div(args.x.size(1), n), 32), 32, 256);
      kernel<<<static_cast<unsigned>(count), static_cast<unsigned>(threads), 0, stream_of(native)>>>(
          reading<Act>(args.x), rows2<Act>(args.dx), args.rows.data<std::int32_t>(), args.weights.data<float>(),
          args.dweights.data<float>(), native.fault);
    };
    if (aligned<kWide>({args.x, args.dx})) {
      launch(weighted_kernel<Act, kWide>, kWide);
    } else {
      launch(weighted_kernel<Act, 1>, 1);
    }
  });
}

}  // namespace hawser::ops::cuda
