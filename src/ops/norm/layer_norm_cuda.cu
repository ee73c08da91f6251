// CUDA kernels of layer_norm. forward_kernel and backward_kernel need rows of whole 16 bytes that fit the registers of
// a block. The other kernels take any shape and read rows again.
#include "ops/cuda/column_sums.cuh"
#include "ops/norm/layer_norm.h"

namespace hawser::ops::cuda {

namespace {

// Both sums over the block, returned to every thread. `shared`: 32 pairs; before a second call on the same memory the
// block needs a barrier.
__device__ __forceinline__ float2 block_sums(float2 value, float2* shared) {
  value.x = warp_sum(value.x);
  value.y = warp_sum(value.y);
  const int warps = blockDim.x / 32;
  if (warps == 1) return value;
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  const int lane = threadIdx.x % 32;
  const float2 mine = lane < warps ? shared[lane] : float2{};
  return {warp_sum(mine.x), warp_sum(mine.y)};
}

template <class T>
Rows2<const T> reading(const TensorView& view) {
  const auto rows = rows2<T>(view);
  return {rows.data, rows.count, rows.columns, rows.stride};
}

// ---- forward ----

template <class Act, class Weight>
struct Normalise {
  Rows2<const Act> x;
  Rows2<Act> y;
  const Weight *weight, *bias;  // bias may be null
  float* statistics;            // [2, rows]
  float epsilon;
};

// A row's vectors stay in registers, K in each thread of a block: the variance is that of the centred values.
template <class Act, class Weight, int N, int K>
__global__ void forward_kernel(Normalise<Act, Weight> n) {
  __shared__ float shared[2][32];
  const std::int64_t t = blockIdx.x, columns = n.x.columns;
  const auto place = [&](int k) { return (static_cast<std::int64_t>(k) * blockDim.x + threadIdx.x) * N; };
  Vec<Act, N> kept[K];
  float sum = 0;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (place(k) < columns) kept[k] = load<N>(n.x.row(t) + place(k));
  }
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (place(k) >= columns) continue;
    const Vec<float, N> v = widen(kept[k]);
#pragma unroll
    for (int i = 0; i < N; ++i) sum += v.v[i];
  }
  const float mean = block_sum(sum, shared[0]) / static_cast<float>(columns);
  float squares = 0;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (place(k) >= columns) continue;
    const Vec<float, N> v = widen(kept[k]);
#pragma unroll
    for (int i = 0; i < N; ++i) squares += (v.v[i] - mean) * (v.v[i] - mean);
  }
  const float rstd = 1.0f / sqrtf(block_sum(squares, shared[1]) / static_cast<float>(columns) + n.epsilon);
  if (threadIdx.x == 0) {
    n.statistics[t] = mean;
    n.statistics[n.x.count + t] = rstd;
  }
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (place(k) >= columns) continue;
    Vec<float, N> v = widen(kept[k]), b{};
    const Vec<float, N> w = load_float<N>(n.weight + place(k));
    if (n.bias != nullptr) b = load_float<N>(n.bias + place(k));
#pragma unroll
    for (int i = 0; i < N; ++i) v.v[i] = (v.v[i] - mean) * rstd * w.v[i] + b.v[i];
    store_float<N>(n.y.row(t) + place(k), v);
  }
}

// Fallback for any shape; reads the row three times.
template <class Act, class Weight>
__global__ void forward_any_kernel(Normalise<Act, Weight> n) {
  __shared__ float shared[2][32];
  const std::int64_t t = blockIdx.x, columns = n.x.columns;
  const Act* const from = n.x.row(t);
  float sum = 0, squares = 0;
  for (std::int64_t c = threadIdx.x; c < columns; c += blockDim.x) sum += to_float(from[c]);
  const float mean = block_sum(sum, shared[0]) / static_cast<float>(columns);
  for (std::int64_t c = threadIdx.x; c < columns; c += blockDim.x) {
    const float centred = to_float(from[c]) - mean;
    squares += centred * centred;
  }
  const float rstd = 1.0f / sqrtf(block_sum(squares, shared[1]) / static_cast<float>(columns) + n.epsilon);
  if (threadIdx.x == 0) {
    n.statistics[t] = mean;
    n.statistics[n.x.count + t] = rstd;
  }
  for (std::int64_t c = threadIdx.x; c < columns; c += blockDim.x) {
    const float bias = n.bias != nullptr ? to_float(n.bias[c]) : 0.0f;
    n.y.row(t)[c] = from_float<Act>((to_float(from[c]) - mean) * rstd * to_float(n.weight[c]) + bias);
  }
}

// Threads per block to hold a row with K vectors of N elements each; 0 if they would be too many.
int threads_for(std::int64_t columns, int n, int k) {
  const std::int64_t threads = round_up(ceil_div(columns, n * k), 32);
  return threads <= 1024 ? static_cast<int>(threads) : 0;
}

template <class Act, class Weight>
void forward(const CudaNative& native, const LayerNormForward& args) {
  constexpr int kWide = 16 / sizeof(Act);
  const Normalise<Act, Weight> n{.x = reading<Act>(args.x),
                                 .y = rows2<Act>(args.y),
                                 .weight = reinterpret_cast<const Weight*>(args.weight.raw()),
                                 .bias = reinterpret_cast<const Weight*>(args.bias.raw()),
                                 .statistics = args.statistics.data<float>(),
                                 .epsilon = static_cast<float>(args.epsilon)};
  if (n.x.count == 0) return;
  const auto blocks = static_cast<unsigned>(n.x.count);
  if (aligned<kWide>({args.x, args.y}) && reinterpret_cast<std::uintptr_t>(n.weight) % 16 == 0 &&
      reinterpret_cast<std::uintptr_t>(n.bias) % 16 == 0) {
    if (const int threads = threads_for(n.x.columns, kWide, 4); threads > 0) {
      return forward_kernel<Act, Weight, kWide, 4><<<blocks, threads, 0, stream_of(native)>>>(n);
    }
  }
  forward_any_kernel<Act, Weight><<<blocks, 256, 0, stream_of(native)>>>(n);
}

// ---- backward ----

// Rounded before it is added to anything, as it is in the mean: of rows whose values are all equal, dx is then zero.
__device__ __forceinline__ float product(float a, float b) {
  return __fmul_rn(a, b);
}

template <class Act, class Weight>
struct Gradient {
  Rows2<const Act> x, dy, residual;
  Rows2<Act> dx;
  const Weight* weight;
  const float* statistics;
  float *dweight, *dbias;  // [gridDim.x, stride] partial sums; null: not wanted
  std::int64_t stride;
};

// Memory traffic bounds the kernel: it reads x, dy and the residual once and writes dx once. As many blocks run as the
// GPU holds: block b has rows b, b + gridDim.x, ..., a thread the same K vectors of each. So dweight and dbias are
// summed in registers, and a block writes one row of partial sums of each for sum_partials.
// dx needs two sums over the row first, which one reduction computes. The loads of the next row are issued before it:
// both rows are in registers, packed. Two buffers in shared memory take turns, so that a row needs one barrier.
// The columns fix the order of a row's sums, the number of blocks that of dweight and dbias; there are no atomics.
// Limit: 512 threads hold rows of whole 16 bytes and at most 16 KiB (K = 2).
template <class Act, class Weight, int N, int K>
__global__ void __launch_bounds__(512) backward_kernel(Gradient<Act, Weight> g) {
  __shared__ float2 shared[2][32];
  const std::int64_t count = g.x.count, columns = g.x.columns;
  const bool add = g.residual.data != nullptr;
  const auto place = [&](int k) { return (static_cast<std::int64_t>(k) * blockDim.x + threadIdx.x) * N; };
  Vec<float, N> dweight[K], dbias[K];
  Vec<Weight, N> weight[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    dweight[k] = {};
    dbias[k] = {};
    if (place(k) < columns) weight[k] = load<N>(g.weight + place(k));
  }
  struct Row {
    Vec<Act, N> x[K], dy[K], residual[K];
    float mean, rstd;
  };
  const auto fetch = [&](std::int64_t t, Row& row) {
    row.mean = g.statistics[t];
    row.rstd = g.statistics[count + t];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (place(k) >= columns) continue;
      row.x[k] = load<N>(g.x.row(t) + place(k));
      row.dy[k] = load<N>(g.dy.row(t) + place(k));
      if (add) row.residual[k] = load<N>(g.residual.row(t) + place(k));
    }
  };
  Row next;
  if (blockIdx.x < count) fetch(blockIdx.x, next);
  int turn = 0;
  for (std::int64_t t = blockIdx.x; t < count; t += gridDim.x, turn ^= 1) {
    const Row row = next;
    if (t + gridDim.x < count) fetch(t + gridDim.x, next);
    float2 sums{};  // of g, and of g * n
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (place(k) >= columns) continue;
      const Vec<float, N> x = widen(row.x[k]), dy = widen(row.dy[k]), w = widen(weight[k]);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float n = (x.v[i] - row.mean) * row.rstd, gradient = product(dy.v[i], w.v[i]);
        sums.x += gradient;
        sums.y += gradient * n;
        dweight[k].v[i] += dy.v[i] * n;
        dbias[k].v[i] += dy.v[i];
      }
    }
    sums = block_sums(sums, shared[turn]);
    const float mean_g = sums.x / static_cast<float>(columns), mean_gn = sums.y / static_cast<float>(columns);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (place(k) >= columns) continue;
      const Vec<float, N> x = widen(row.x[k]), dy = widen(row.dy[k]), w = widen(weight[k]);
      Vec<float, N> out{};
      if (add) out = widen(row.residual[k]);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float n = (x.v[i] - row.mean) * row.rstd;
        out.v[i] += row.rstd * (product(dy.v[i], w.v[i]) - mean_g - n * mean_gn);
      }
      store_float<N>(g.dx.row(t) + place(k), out);
    }
  }
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (place(k) >= columns) continue;
    if (g.dweight != nullptr) store<N>(g.dweight + blockIdx.x * g.stride + place(k), dweight[k]);
    if (g.dbias != nullptr) store<N>(g.dbias + blockIdx.x * g.stride + place(k), dbias[k]);
  }
}

// Fallback for any shape. Computes the sums over rows first, since dx may alias dy.
template <class Act, class Weight>
__global__ void parameters_any_kernel(Gradient<Act, Weight> g) {
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (c >= g.x.columns) return;
  float weight = 0, bias = 0;
  for (std::int64_t t = blockIdx.y; t < g.x.count; t += gridDim.y) {
    const float dy = to_float(g.dy.row(t)[c]);
    weight += dy * ((to_float(g.x.row(t)[c]) - g.statistics[t]) * g.statistics[g.x.count + t]);
    bias += dy;
  }
  if (g.dweight != nullptr) g.dweight[blockIdx.y * g.stride + c] = weight;
  if (g.dbias != nullptr) g.dbias[blockIdx.y * g.stride + c] = bias;
}

template <class Act, class Weight>
__global__ void dx_any_kernel(Gradient<Act, Weight> g) {
  __shared__ float2 shared[32];
  const std::int64_t t = blockIdx.x, columns = g.x.columns;
  const float mean = g.statistics[t], rstd = g.statistics[g.x.count + t];
  const auto normed = [&](std::int64_t c) { return (to_float(g.x.row(t)[c]) - mean) * rstd; };
  const auto gradient = [&](std::int64_t c) { return product(to_float(g.dy.row(t)[c]), to_float(g.weight[c])); };
  float2 sums{};
  for (std::int64_t c = threadIdx.x; c < columns; c += blockDim.x) {
    sums.x += gradient(c);
    sums.y += gradient(c) * normed(c);
  }
  sums = block_sums(sums, shared);
  const float mean_g = sums.x / static_cast<float>(columns), mean_gn = sums.y / static_cast<float>(columns);
  for (std::int64_t c = threadIdx.x; c < columns; c += blockDim.x) {
    const float residual = g.residual.data != nullptr ? to_float(g.residual.row(t)[c]) : 0.0f;
    g.dx.row(t)[c] = from_float<Act>(rstd * (gradient(c) - mean_g - normed(c) * mean_gn) + residual);
  }
}

template <class Act, class Weight>
void backward(const CudaNative& native, const LayerNormBackward& args) {
  constexpr int kWide = 16 / sizeof(Act);
  Gradient<Act, Weight> g{.x = reading<Act>(args.x),
                          .dy = reading<Act>(args.dy),
                          .residual = reading<Act>(args.residual_gradient),
                          .dx = rows2<Act>(args.dx),
                          .weight = reinterpret_cast<const Weight*>(args.weight.raw()),
                          .statistics = args.statistics.data<float>(),
                          .dweight = nullptr,
                          .dbias = nullptr,
                          .stride = round_up(args.x.size(1), 16)};
  const std::int64_t tokens = g.x.count, columns = g.x.columns;
  const cudaStream_t stream = stream_of(native);
  int blocks = 1;
  const auto reserve = [&](int per_sm) {
    blocks = row_blocks(native, tokens, 2 * columns, per_sm);
    Scratch scratch(native);
    if (!args.dweight.empty()) g.dweight = scratch.take<float>(blocks * g.stride);
    if (!args.dbias.empty()) g.dbias = scratch.take<float>(blocks * g.stride);
  };
  const auto launch = [&](auto kernel, int k) {
    const auto threads = static_cast<int>(round_up(ceil_div(columns, kWide * k), 32));
    int resident = 1;
    HAWSER_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads, 0));
    reserve(std::max(1, resident));
    kernel<<<blocks, threads, 0, stream>>>(g);
  };
  const bool fast = aligned<kWide>({args.x, args.dy, args.residual_gradient, args.dx}) &&
                    reinterpret_cast<std::uintptr_t>(g.weight) % 16 == 0;
  if (fast && columns <= 512 * kWide) {
    launch(backward_kernel<Act, Weight, kWide, 1>, 1);
  } else if (fast && columns <= 512 * kWide * 2) {
    launch(backward_kernel<Act, Weight, kWide, 2>, 2);
  } else {
    reserve(1);
    if (g.dweight != nullptr || g.dbias != nullptr) {
      parameters_any_kernel<<<dim3(static_cast<unsigned>(ceil_div(columns, 128)), blocks), 128, 0, stream>>>(g);
    }
    if (tokens > 0) dx_any_kernel<<<static_cast<unsigned>(tokens), 256, 0, stream>>>(g);
  }
  const auto finish = [&](const float* partial, const TensorView& out, bool accumulate) {
    if (partial != nullptr) sum_partials(native, partial, blocks, g.stride, out, accumulate, columns);
  };
  finish(g.dweight, args.dweight, args.accumulate_weight);
  finish(g.dbias, args.dbias, args.accumulate_bias);
}

}  // namespace

void layer_norm_forward(const CudaNative& native, const LayerNormForward& args) {
  dispatch_device_float(args.x.dtype(), [&](auto act) {
    dispatch_device_float(args.weight.dtype(),
                          [&](auto weight) { forward<decltype(act), decltype(weight)>(native, args); });
  });
}

void layer_norm_backward(const CudaNative& native, const LayerNormBackward& args) {
  dispatch_device_float(args.x.dtype(), [&](auto act) {
    dispatch_device_float(args.weight.dtype(),
                          [&](auto weight) { backward<decltype(act), decltype(weight)>(native, args); });
  });
}

}  // namespace hawser::ops::cuda
