// CUDA kernels of rms_norm for heads inside the rows of wider matrices. Heads are short: a group of 2^n lanes of a
// warp handles one, and a block several. As for matrices, partial sums of dweight are in the stream's scratch.
#include "ops/cuda/column_sums.cuh"
#include "ops/norm/rms_norm_cuda.cuh"

namespace hawser::ops::cuda {

namespace {

constexpr int kThreads = 256;

template <class T>
struct HeadRows {
  T* data = nullptr;
  std::int64_t stride = 0;  // from token to token
  unsigned heads = 1;
  int columns = 0;
  __device__ T* row(std::int64_t i) const {
    const auto at = static_cast<unsigned>(i);  // there are less than 2^31 heads
    return data + static_cast<std::int64_t>(at / heads) * stride + static_cast<std::int64_t>(at % heads) * columns;
  }
};

template <class T>
HeadRows<T> head_rows(const TensorView& view) {
  if (view.empty()) return {};
  return {reinterpret_cast<T*>(view.raw()), view.stride(0), static_cast<unsigned>(view.size(1)),
          static_cast<int>(view.size(2))};
}

// Sum over the lanes of a group, to each of them.
__device__ __forceinline__ float group_sum(float value, int lanes) {
  for (int offset = lanes / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

// The columns of lane `lane`, vector k.
template <int N>
__device__ __forceinline__ int column_of(int k, int lane, int lanes) {
  return (k * lanes + lane) * N;
}

template <class Act, class Weight, bool kUnitOffset, int N, int K>
__global__ void __launch_bounds__(kThreads) forward_kernel(HeadRows<const Act> x, const Weight* weight, HeadRows<Act> y,
                                                           float* rstd, std::int64_t count, float epsilon, int lanes) {
  const int lane = static_cast<int>(threadIdx.x) % lanes, groups = kThreads / lanes;
  const std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * groups + static_cast<int>(threadIdx.x) / lanes;
  const bool live = t < count;  // all lanes of a warp take part in the sums
  const Act* const from = x.row(live ? t : 0);
  Vec<Act, N> kept[K];
  float squares = 0;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int at = column_of<N>(k, lane, lanes);
    if (at >= x.columns) continue;
    kept[k] = load<N>(from + at);
    const Vec<float, N> v = widen(kept[k]);
#pragma unroll
    for (int i = 0; i < N; ++i) squares += v.v[i] * v.v[i];
  }
  const float r = 1.0f / sqrtf(group_sum(squares, lanes) / static_cast<float>(x.columns) + epsilon);
  if (!live) return;
  if (lane == 0) rstd[t] = r;
  Act* const to = y.row(t);
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int at = column_of<N>(k, lane, lanes);
    if (at >= x.columns) continue;
    Vec<float, N> v = widen(kept[k]);
    const Vec<float, N> w = factors<kUnitOffset>(load<N>(weight + at));
#pragma unroll
    for (int i = 0; i < N; ++i) v.v[i] = v.v[i] * r * w.v[i];
    store_float<N>(to + at, v);
  }
}

template <class Act, class Weight>
struct Gradient {
  HeadRows<const Act> x, dy, residual;
  HeadRows<Act> dx;
  const Weight* weight;
  const float* rstd;
  std::int64_t count;
  float* partial;  // [gridDim.x, stride]; null: no weight gradient
  std::int64_t stride;
};

// Memory traffic bounds the kernel, and a head is too short for a block: a group of `lanes` lanes has one at a time.
// Lane l has vectors l, l + lanes, ... of N elements. x, dy and dweight are in registers; weight is short and is read
// again for each head.
// Sums over a head are shuffles within the group: the loop has no barrier, and the warps of an SM hide each other's
// latency. A group adds its heads to dweight in order, then a block the parts of its groups in shared memory, then
// sum_partials those of the blocks. So the sizes and the number of blocks fix the order, without atomics.
// Limits: aligned heads of at most 1 KiB have 16 bytes a vector and K = 2; others, up to kRmsNormMaxHeadDim channels,
// one element and K = 32.
template <class Act, class Weight, bool kUnitOffset, int N, int K>
__global__ void __launch_bounds__(kThreads) backward_kernel(Gradient<Act, Weight> g, int lanes) {
  extern __shared__ float parts[];  // [groups, columns]
  const int lane = static_cast<int>(threadIdx.x) % lanes, group = static_cast<int>(threadIdx.x) / lanes;
  const int groups = kThreads / lanes, columns = g.x.columns;
  Vec<float, N> dweight[K];
#pragma unroll
  for (int k = 0; k < K; ++k) dweight[k] = {};
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * groups;
  for (std::int64_t base = static_cast<std::int64_t>(blockIdx.x) * groups; base < g.count; base += step) {
    const std::int64_t t = base + group;
    const bool live = t < g.count;
    const std::int64_t row = live ? t : 0;
    const float r = g.rstd[row];
    const Act *const x_row = g.x.row(row), *const dy_row = g.dy.row(row);
    Vec<Act, N> x[K], dy[K];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int at = column_of<N>(k, lane, lanes);
      if (at >= columns) continue;
      x[k] = load<N>(x_row + at);
      dy[k] = load<N>(dy_row + at);
    }
    float dot = 0;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int at = column_of<N>(k, lane, lanes);
      if (at >= columns) continue;
      const Vec<float, N> xf = widen(x[k]), gf = widen(dy[k]), wf = factors<kUnitOffset>(load<N>(g.weight + at));
#pragma unroll
      for (int i = 0; i < N; ++i) {
        dot += gf.v[i] * wf.v[i] * xf.v[i];
        if (live) dweight[k].v[i] += gf.v[i] * (xf.v[i] * r);
      }
    }
    const float pull = group_sum(dot, lanes) * r * r / static_cast<float>(columns);
    if (g.dx.data == nullptr || !live) continue;
    Act* const to = g.dx.row(t);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int at = column_of<N>(k, lane, lanes);
      if (at >= columns) continue;
      const Vec<float, N> xf = widen(x[k]), gf = widen(dy[k]), wf = factors<kUnitOffset>(load<N>(g.weight + at));
      Vec<float, N> out;
#pragma unroll
      for (int i = 0; i < N; ++i) out.v[i] = r * (gf.v[i] * wf.v[i] - pull * xf.v[i]);
      if (g.residual.data != nullptr) {
        const Vec<float, N> rf = load_float<N>(g.residual.row(t) + at);
#pragma unroll
        for (int i = 0; i < N; ++i) out.v[i] += rf.v[i];
      }
      store_float<N>(to + at, out);
    }
  }
  if (g.partial == nullptr) return;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int at = column_of<N>(k, lane, lanes);
    if (at >= columns) continue;
#pragma unroll
    for (int i = 0; i < N; ++i) parts[group * columns + at + i] = dweight[k].v[i];
  }
  __syncthreads();
  for (int c = threadIdx.x; c < columns; c += kThreads) {
    float sum = 0;
    for (int other = 0; other < groups; ++other) sum += parts[other * columns + c];
    g.partial[blockIdx.x * g.stride + c] = sum;
  }
}

// Lanes of a group for heads of `columns` with vectors of N elements.
int lanes_for(std::int64_t columns, int n) {
  int lanes = 1;
  while (lanes < 32 && lanes * n < columns) lanes *= 2;
  return lanes;
}

// Calls body with the vector width and the number of vectors per lane that hold a head, as integral constants.
template <class Act, class Body>
void dispatch_width(const TensorView& weight, std::initializer_list<TensorView> heads, const Body& body) {
  constexpr int kWide = 16 / sizeof(Act);
  const std::int64_t columns = weight.size(0);
  if (aligned<kWide>(heads) && columns % kWide == 0 && columns <= 32 * 2 * kWide &&
      reinterpret_cast<std::uintptr_t>(weight.raw()) % 16 == 0) {
    return body(std::integral_constant<int, kWide>(), std::integral_constant<int, 2>());
  }
  body(std::integral_constant<int, 1>(), std::integral_constant<int, kRmsNormMaxHeadDim / 32>());
}

std::int64_t count_of(const TensorView& x) {
  const std::int64_t count = x.size(0) * x.size(1);
  HAWSER_CHECK(count < (std::int64_t{1} << 31), "rms_norm: ", count, " heads");
  return count;
}

}  // namespace

void rms_norm_heads_forward(const CudaNative& native, const RmsNormForward& args) {
  const std::int64_t count = count_of(args.x);
  if (count == 0) return;
  dispatch_norm(args, [&](auto act, auto weight, auto unit_offset) {
    using Act = decltype(act);
    using Weight = decltype(weight);
    dispatch_width<Act>(args.weight, {args.x, args.y}, [&](auto n, auto k) {
      const int lanes = lanes_for(args.x.size(2), n);
      forward_kernel<Act, Weight, decltype(unit_offset)::value, decltype(n)::value, decltype(k)::value>
          <<<static_cast<unsigned>(ceil_div(count, kThreads / lanes)), kThreads, 0, stream_of(native)>>>(
              head_rows<const Act>(args.x), reinterpret_cast<const Weight*>(args.weight.raw()), head_rows<Act>(args.y),
              args.rstd.data<float>(), count, static_cast<float>(args.epsilon), lanes);
    });
  });
}

void rms_norm_heads_backward(const CudaNative& native, const RmsNormBackward& args) {
  const std::int64_t count = count_of(args.x), columns = args.x.size(2);
  dispatch_norm(args, [&](auto act, auto weight, auto unit_offset) {
    using Act = decltype(act);
    using Weight = decltype(weight);
    const std::initializer_list<TensorView> heads = {args.x, args.dy, args.residual_gradient, args.dx};
    dispatch_width<Act>(args.weight, heads, [&](auto n, auto k) {
      const int lanes = lanes_for(columns, n), groups = kThreads / lanes;
      const auto bytes = static_cast<std::size_t>(groups * columns) * sizeof(float);
      const auto kernel =
          backward_kernel<Act, Weight, decltype(unit_offset)::value, decltype(n)::value, decltype(k)::value>;
      int resident = 1;
      HAWSER_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, kThreads, bytes));
      const auto blocks = static_cast<int>(std::clamp<std::int64_t>(
          ceil_div(count, groups), 1, row_blocks(native, count, columns, std::max(resident, 1))));
      Gradient<Act, Weight> g{.x = head_rows<const Act>(args.x),
                              .dy = head_rows<const Act>(args.dy),
                              .residual = head_rows<const Act>(args.residual_gradient),
                              .dx = head_rows<Act>(args.dx),
                              .weight = reinterpret_cast<const Weight*>(args.weight.raw()),
                              .rstd = args.rstd.data<float>(),
                              .count = count,
                              .partial = nullptr,
                              .stride = round_up(columns, 16)};
      if (!args.dweight.empty()) g.partial = Scratch(native).take<float>(blocks * g.stride);
      kernel<<<static_cast<unsigned>(blocks), kThreads, bytes, stream_of(native)>>>(g, lanes);
      if (g.partial == nullptr) return;
      sum_partials(native, g.partial, blocks, g.stride, args.dweight, args.accumulate_weight, columns);
    });
  });
}

}  // namespace hawser::ops::cuda
