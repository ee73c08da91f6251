// CUDA kernels of rms_norm for matrices; heads are in rms_norm_heads_cuda.cu, y in FP8 in rms_norm_fp8_cuda.cu.
// forward_kernel and backward_kernel need rows of whole 16 bytes that fit the registers of a block. The other kernels
// take any shape and read rows again. The op's workspace is not used: partial sums are in the stream's scratch.
#include <cuda_pipeline.h>

#include "ops/cuda/bulk_copy.cuh"
#include "ops/cuda/column_sums.cuh"
#include "ops/norm/rms_norm.h"
#include "ops/norm/rms_norm_cuda.cuh"

namespace hawser::ops::cuda {

namespace {

// A row's vectors stay in registers between the sum and the result, K in each thread of a block.
template <class Act, class Weight, bool kUnitOffset, int N, int K>
__global__ void forward_kernel(Rows2<const Act> x, const Weight* weight, Rows2<Act> y, float* rstd, float epsilon) {
  __shared__ float shared[32];
  const std::int64_t t = blockIdx.x;
  const Act* const from = x.row(t);
  Act* const to = y.row(t);
  Vec<Act, N> kept[K];
  Vec<Weight, N> weights[K];
  float squares = 0;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const std::int64_t at = (static_cast<std::int64_t>(k) * blockDim.x + threadIdx.x) * N;
    if (at < x.columns) kept[k] = load<N>(from + at);
  }
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const std::int64_t at = (static_cast<std::int64_t>(k) * blockDim.x + threadIdx.x) * N;
    if (at < x.columns) weights[k] = load<N>(weight + at);
  }
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const std::int64_t at = (static_cast<std::int64_t>(k) * blockDim.x + threadIdx.x) * N;
    if (at >= x.columns) continue;
    const Vec<float, N> v = widen(kept[k]);
#pragma unroll
    for (int i = 0; i < N; ++i) squares += v.v[i] * v.v[i];
  }
  const float mean = block_sum(squares, shared) / static_cast<float>(x.columns);
  const float r = 1.0f / sqrtf(mean + epsilon);
  if (threadIdx.x == 0) rstd[t] = r;
  if (y.data == nullptr) return;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const std::int64_t at = (static_cast<std::int64_t>(k) * blockDim.x + threadIdx.x) * N;
    if (at >= x.columns) continue;
    Vec<float, N> v = widen(kept[k]);
    const Vec<float, N> w = factors<kUnitOffset>(weights[k]);
#pragma unroll
    for (int i = 0; i < N; ++i) v.v[i] = v.v[i] * r * w.v[i];
    store_float<N>(to + at, v);
  }
}

// Fallback for any shape; reads the row twice.
template <class Act, class Weight, bool kUnitOffset>
__global__ void forward_any_kernel(Rows2<const Act> x, const Weight* weight, Rows2<Act> y, float* rstd, float epsilon) {
  __shared__ float shared[32];
  const std::int64_t t = blockIdx.x;
  float squares = 0;
  for (std::int64_t c = threadIdx.x; c < x.columns; c += blockDim.x) {
    const float v = to_float(x.row(t)[c]);
    squares += v * v;
  }
  const float r = 1.0f / sqrtf(block_sum(squares, shared) / static_cast<float>(x.columns) + epsilon);
  if (threadIdx.x == 0) rstd[t] = r;
  if (y.data == nullptr) return;
  for (std::int64_t c = threadIdx.x; c < x.columns; c += blockDim.x) {
    y.row(t)[c] = from_float<Act>(to_float(x.row(t)[c]) * r * factor<kUnitOffset>(weight[c]));
  }
}

template <class T>
Rows2<const T> reading(const TensorView& view) {
  const auto rows = rows2<T>(view);
  return {rows.data, rows.count, rows.columns, rows.stride};
}

// Threads per block to hold a row with K vectors of N elements each; 0 if they would be too many.
int threads_for(std::int64_t columns, int n, int k) {
  const std::int64_t threads = round_up(ceil_div(columns, n * k), 32);
  return threads <= 1024 ? static_cast<int>(threads) : 0;
}

template <class Act, class Weight, bool kUnitOffset>
void forward(const CudaNative& native, const RmsNormForward& args) {
  constexpr int kWide = 16 / sizeof(Act);
  const auto x = reading<Act>(args.x);
  const auto y = rows2<Act>(args.y);
  if (x.count == 0) return;
  const auto* weight = reinterpret_cast<const Weight*>(args.weight.raw());
  float* const rstd = args.rstd.data<float>();
  const auto epsilon = static_cast<float>(args.epsilon);
  const auto blocks = static_cast<unsigned>(x.count);
  if (aligned<kWide>({args.x, args.y}) && reinterpret_cast<std::uintptr_t>(weight) % 16 == 0) {
    if (const int threads = threads_for(x.columns, kWide, 4); threads > 0) {
      return forward_kernel<Act, Weight, kUnitOffset, kWide, 4>
          <<<blocks, threads, 0, stream_of(native)>>>(x, weight, y, rstd, epsilon);
    }
  }
  forward_any_kernel<Act, Weight, kUnitOffset><<<blocks, 256, 0, stream_of(native)>>>(x, weight, y, rstd, epsilon);
}

// ---- backward ----

template <class Act, class Weight>
struct Gradient {
  Rows2<const Act> x, dy, residual;
  Rows2<Act> dx;
  const Weight* weight;
  const float* rstd;
  float* partial;  // [gridDim.x, stride]; null: no weight gradient
  std::int64_t stride;
};

constexpr int kMaxStages = 8;

// Memory traffic bounds the kernel: it reads x, dy and the residual once and writes dx once (measured:
// docs/performance.md). As many blocks run as the GPU holds: block b has rows b, b + gridDim.x, ..., a thread the same
// K vectors of each. So dweight is summed in registers, and a block writes one row of partial sums for sum_partials.
// dx needs a sum over the row first. Meanwhile the next rows, `stages` in all, are on their way to shared memory, which
// takes no registers: kBulk, copied by the copy engine; otherwise each thread copies what it will read (cp.async). A
// row's elements go to registers once, so that dx may overwrite dy or the residual.
// The columns fix the order of a row's sum, the number of blocks that of dweight; there are no atomics.
// Limits: kBulk needs compute capability 9.0; 512 threads hold rows of whole 16 bytes and at most 32 KiB (K = 4).
template <class Act, class Weight, bool kUnitOffset, int N, int K, int Threads, bool kBulk>
__global__ void __launch_bounds__(Threads, Threads <= 256 ? 2 : 1)
    backward_kernel(Gradient<Act, Weight> g, int stages) {
  extern __shared__ uint4 memory[];
  __shared__ CopyBarrier full[kMaxStages];
  __shared__ float shared[2][32];
  const std::int64_t count = g.x.count, columns = g.x.columns;
  const bool add = g.residual.data != nullptr;
  const int views = add ? 3 : 2;
  Act* const rows = reinterpret_cast<Act*>(memory);  // [stages, views, columns]
  const auto place = [&](int k) { return (k * Threads + static_cast<int>(threadIdx.x)) * N; };
  // Starts the copies of row t to a stage, if there is such a row. All threads call it, for all rows in order.
  const auto fetch = [&](std::int64_t t, int stage) {
    Act* const to = rows + stage * views * columns;
    if constexpr (kBulk) {
      if (threadIdx.x != 0 || t >= count) return;
      const auto bytes = static_cast<unsigned>(columns * static_cast<std::int64_t>(sizeof(Act)));
      full[stage].expect(bytes * views);
      full[stage].copy(to, g.x.row(t), bytes);
      full[stage].copy(to + columns, g.dy.row(t), bytes);
      if (add) full[stage].copy(to + 2 * columns, g.residual.row(t), bytes);
    } else {
#pragma unroll
      for (int k = 0; k < K; ++k) {
        if (t >= count || place(k) >= columns) continue;
        __pipeline_memcpy_async(to + place(k), g.x.row(t) + place(k), 16);
        __pipeline_memcpy_async(to + columns + place(k), g.dy.row(t) + place(k), 16);
        if (add) __pipeline_memcpy_async(to + 2 * columns + place(k), g.residual.row(t) + place(k), 16);
      }
      __pipeline_commit();  // one for each row, so that the number of those under way is known
    }
  };
  if constexpr (kBulk) {
    if (threadIdx.x == 0) {
      for (int s = 0; s < stages; ++s) full[s].make();
      CopyBarrier::fence_made();
    }
  }
  for (int s = 0; s < stages; ++s) fetch(blockIdx.x + static_cast<std::int64_t>(s) * gridDim.x, s);
  __syncthreads();
  Vec<float, N> dweight[K];
  Vec<Weight, N> weight[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    dweight[k] = {};
    if (place(k) < columns) weight[k] = load<N>(g.weight + place(k));
  }
  int turn = 0, stage = 0;
  unsigned phase = 0;
  float next_r = blockIdx.x < count ? g.rstd[blockIdx.x] : 0;
  for (std::int64_t t = blockIdx.x; t < count; t += gridDim.x, turn ^= 1) {
    const float r = next_r;
    if (t + gridDim.x < count) next_r = g.rstd[t + gridDim.x];
    const Act* const from = rows + stage * views * columns;
    if constexpr (kBulk) {
      full[stage].wait(phase);
    } else {
      __pipeline_wait_prior(stages - 1);  // a thread reads only what it has copied
    }
    Vec<Act, N> x[K], dy[K], residual[K];
    float dot = 0;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (place(k) >= columns) continue;
      x[k] = load<N>(from + place(k));
      dy[k] = load<N>(from + columns + place(k));
      if (add) residual[k] = load<N>(from + 2 * columns + place(k));
      const Vec<float, N> xf = widen(x[k]), gf = widen(dy[k]), wf = factors<kUnitOffset>(weight[k]);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        dot += gf.v[i] * wf.v[i] * xf.v[i];
        dweight[k].v[i] += gf.v[i] * (xf.v[i] * r);
      }
    }
    // The barrier in block_sum also ensures that all threads have read this stage.
    const float pull = block_sum(dot, shared[turn]) * r * r / static_cast<float>(columns);
    fetch(t + static_cast<std::int64_t>(stages) * gridDim.x, stage);
    if (++stage == stages) {
      stage = 0;
      phase ^= 1;
    }
    if (g.dx.data == nullptr) continue;
    Act* const to = g.dx.row(t);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (place(k) >= columns) continue;
      const Vec<float, N> xf = widen(x[k]), gf = widen(dy[k]), wf = factors<kUnitOffset>(weight[k]);
      Vec<float, N> out;
#pragma unroll
      for (int i = 0; i < N; ++i) out.v[i] = r * (gf.v[i] * wf.v[i] - pull * xf.v[i]);
      if (add) {
        const Vec<float, N> rf = widen(residual[k]);
#pragma unroll
        for (int i = 0; i < N; ++i) out.v[i] += rf.v[i];
      }
      store_float<N>(to + place(k), out);
    }
  }
  if (g.partial == nullptr) return;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (place(k) < columns) store<N>(g.partial + blockIdx.x * g.stride + place(k), dweight[k]);
  }
}

// Fallback for any shape. Computes dweight first, since dx may alias dy.
template <class Act, class Weight>
__global__ void dweight_any_kernel(Gradient<Act, Weight> g) {
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (c >= g.x.columns) return;
  float sum = 0;
  for (std::int64_t t = blockIdx.y; t < g.x.count; t += gridDim.y) {
    sum += to_float(g.dy.row(t)[c]) * (to_float(g.x.row(t)[c]) * g.rstd[t]);
  }
  g.partial[blockIdx.y * g.stride + c] = sum;
}

template <class Act, class Weight, bool kUnitOffset>
__global__ void dx_any_kernel(Gradient<Act, Weight> g) {
  __shared__ float shared[32];
  const std::int64_t t = blockIdx.x;
  const float r = g.rstd[t];
  float dot = 0;
  for (std::int64_t c = threadIdx.x; c < g.x.columns; c += blockDim.x) {
    dot += to_float(g.dy.row(t)[c]) * factor<kUnitOffset>(g.weight[c]) * to_float(g.x.row(t)[c]);
  }
  const float pull = block_sum(dot, shared) * r * r / static_cast<float>(g.x.columns);
  for (std::int64_t c = threadIdx.x; c < g.x.columns; c += blockDim.x) {
    float out = r * (to_float(g.dy.row(t)[c]) * factor<kUnitOffset>(g.weight[c]) - pull * to_float(g.x.row(t)[c]));
    if (g.residual.data != nullptr) out += to_float(g.residual.row(t)[c]);
    g.dx.row(t)[c] = from_float<Act>(out);
  }
}

template <class Act, class Weight, bool kUnitOffset>
void backward(const CudaNative& native, const RmsNormBackward& args) {
  constexpr int kWide = 16 / sizeof(Act);
  Gradient<Act, Weight> g{.x = reading<Act>(args.x),
                          .dy = reading<Act>(args.dy),
                          .residual = reading<Act>(args.residual_gradient),
                          .dx = rows2<Act>(args.dx),
                          .weight = reinterpret_cast<const Weight*>(args.weight.raw()),
                          .rstd = args.rstd.data<float>(),
                          .partial = nullptr,
                          .stride = round_up(args.x.size(1), 16)};
  const std::int64_t tokens = g.x.count, columns = g.x.columns;
  const auto stream = stream_of(native);
  int blocks = 0;
  const auto reserve = [&](int per_sm) {
    blocks = row_blocks(native, tokens, columns, per_sm);
    if (!args.dweight.empty()) g.partial = Scratch(native).take<float>(blocks * g.stride);
  };
  // As many blocks as are resident: two per SM, or one if rows are long, using nearly all of the SM's shared memory.
  const auto launch = [&]<int K, int Threads>() {
    const auto kernel = native.limits.capability >= 90
                            ? backward_kernel<Act, Weight, kUnitOffset, kWide, K, Threads, true>
                            : backward_kernel<Act, Weight, kUnitOffset, kWide, K, Threads, false>;
    const std::int64_t stage_bytes =
        (g.residual.data != nullptr ? 3 : 2) * columns * static_cast<std::int64_t>(sizeof(Act));
    const std::int64_t space = (native.limits.sm_shared_bytes - (std::int64_t{20} << 10)) / (Threads <= 256 ? 2 : 1);
    const auto stages = static_cast<int>(std::clamp<std::int64_t>(space / stage_bytes, 1, kMaxStages));
    const auto bytes = static_cast<std::size_t>(stages * stage_bytes);
    allow_shared_memory(native, kernel, stages * stage_bytes);
    int resident = 1;
    HAWSER_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, Threads, bytes));
    reserve(resident);
    kernel<<<blocks, Threads, bytes, stream>>>(g, stages);
  };
  const bool fast = aligned<kWide>({args.x, args.dy, args.residual_gradient, args.dx}) &&
                    reinterpret_cast<std::uintptr_t>(g.weight) % 16 == 0;
  if (fast && columns <= 128 * kWide) {
    launch.template operator()<1, 128>();
  } else if (fast && columns <= 256 * kWide * 2) {
    launch.template operator()<2, 256>();
  } else if (fast && columns <= 512 * kWide * 2) {
    launch.template operator()<2, 512>();
  } else if (fast && columns <= 512 * kWide * 4) {
    launch.template operator()<4, 512>();
  } else {
    reserve(1);
    if (g.partial != nullptr) {
      dweight_any_kernel<<<dim3(static_cast<unsigned>(ceil_div(columns, 128)), blocks), 128, 0, stream>>>(g);
    }
    if (g.dx.data != nullptr && tokens > 0)
      dx_any_kernel<Act, Weight, kUnitOffset><<<static_cast<unsigned>(tokens), 256, 0, stream>>>(g);
  }
  if (g.partial != nullptr) {
    sum_partials(native, g.partial, blocks, g.stride, args.dweight, args.accumulate_weight, columns);
  }
}

}  // namespace

void rms_norm_forward(const CudaNative& native, const RmsNormForward& args) {
  if (args.x.rank() == 3) return rms_norm_heads_forward(native, args);
  if (!args.fp8.empty() && rms_norm_fp8_in_one_pass(native, args)) return;
  dispatch_norm(args, [&](auto act, auto weight, auto unit_offset) {
    forward<decltype(act), decltype(weight), decltype(unit_offset)::value>(native, args);
  });
  if (!args.fp8.empty()) rms_norm_fp8(native, args);
}

void rms_norm_backward(const CudaNative& native, const RmsNormBackward& args) {
  if (args.x.rank() == 3) return rms_norm_heads_backward(native, args);
  dispatch_norm(args, [&](auto act, auto weight, auto unit_offset) {
    backward<decltype(act), decltype(weight), decltype(unit_offset)::value>(native, args);
  });
}

}  // namespace hawser::ops::cuda
