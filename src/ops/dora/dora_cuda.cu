#include "ops/cuda/kernel.cuh"
#include "ops/dora/dora.h"

namespace hawser::ops::cuda {

namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ float factor_of(float m, float n) {
  return n > 0 ? m / sqrtf(n) : 0.0f;
}

// One block per row. The row of W is read once, 16 bytes a thread; Q, which all rows read, is in the L2 cache.
template <class W, class B, int N>
__global__ void __launch_bounds__(kThreads)
    row_squares_kernel(Rows2<W> w, Rows2<B> b, Rows2<float> p, Rows2<float> q, float scale, float* n) {
  __shared__ float shared[32];
  const std::int64_t r = blockIdx.x;
  const W* const row = w.row(r);
  const B* const b_row = b.row(r);
  float squares = 0, cross = 0, low_rank = 0;
  for (std::int64_t c = threadIdx.x * N; c < w.columns; c += kThreads * N) {
    const Vec<float, N> v = load_float<N>(row + c);
#pragma unroll
    for (int i = 0; i < N; ++i) squares += v.v[i] * v.v[i];
  }
  for (std::int64_t k = threadIdx.x; k < b.columns; k += kThreads) {
    const float b_k = to_float(b_row[k]);
    float inner = 0;
    for (std::int64_t l = 0; l < b.columns; ++l) inner += q.row(l)[k] * to_float(b_row[l]);
    cross += b_k * p.row(r)[k];
    low_rank += b_k * inner;
  }
  const float sum = block_sum(squares + 2 * scale * cross + scale * scale * low_rank, shared);
  if (threadIdx.x == 0) n[r] = fmaxf(sum, 0.0f);
}

template <class Act, class M, int N>
struct ByNorms {
  Rows2<Act> x, y;
  const M* m;
  const float* n;
  float minus;
  bool accumulate;
  __device__ void operator()(std::int64_t row, std::int64_t at) const {
    Vec<float, N> out = load_float<N>(x.row(row) + at);
    const Vec<float, N> magnitude = load_float<N>(m + at), squares = load_float<N>(n + at);
#pragma unroll
    for (int i = 0; i < N; ++i) out.v[i] *= factor_of(magnitude.v[i], squares.v[i]) - minus;
    if (accumulate) {
      const Vec<float, N> before = load_float<N>(y.row(row) + at);
#pragma unroll
      for (int i = 0; i < N; ++i) out.v[i] += before.v[i];
    }
    store_float<N>(y.row(row) + at, out);
  }
};

// A block sums 32 columns: each of its 8 warps every eighth row, then the first warp adds the 8 sums in order. Adjacent
// threads read adjacent columns. Few blocks have work if R is small: the latency of the rows then limits it.
template <class Act, class Dm>
__global__ void __launch_bounds__(kThreads)
    magnitude_gradient_kernel(Rows2<Act> dy, Rows2<Act> u, const float* n, Dm* dm, bool accumulate) {
  __shared__ float sums[kThreads / 32][32];
  const std::int64_t r = static_cast<std::int64_t>(blockIdx.x) * 32 + threadIdx.x % 32;
  float sum = 0;
  if (r < dy.columns) {
    for (std::int64_t t = threadIdx.x / 32; t < dy.count; t += kThreads / 32) {
      sum += to_float(dy.row(t)[r]) * to_float(u.row(t)[r]);
    }
  }
  sums[threadIdx.x / 32][threadIdx.x % 32] = sum;
  __syncthreads();
  if (threadIdx.x >= 32 || r >= dy.columns) return;
  float total = 0;
  for (int i = 0; i < kThreads / 32; ++i) total += sums[i][threadIdx.x];
  total *= factor_of(1.0f, n[r]);
  dm[r] = from_float<Dm>(accumulate ? to_float(dm[r]) + total : total);
}

}  // namespace

void dora_row_squares(const CudaNative& native, const DoraRowSquares& args) {
  if (args.w.size(0) == 0) return;
  dispatch_device_float(args.w.dtype(), [&](auto w_tag) {
    dispatch_device_float(args.b.dtype(), [&](auto b_tag) {
      using W = decltype(w_tag);
      using B = decltype(b_tag);
      constexpr int kWide = 16 / sizeof(W);
      const auto blocks = static_cast<unsigned>(args.w.size(0));
      const auto launch = [&](auto kernel) {
        kernel<<<blocks, kThreads, 0, stream_of(native)>>>(rows2<W>(args.w), rows2<B>(args.b), rows2<float>(args.p),
                                                           rows2<float>(args.q), static_cast<float>(args.scale),
                                                           reinterpret_cast<float*>(args.n.raw()));
      };
      if (aligned<kWide>({args.w})) {
        launch(row_squares_kernel<W, B, kWide>);
      } else {
        launch(row_squares_kernel<W, B, 1>);
      }
    });
  });
}

void scale_by_norms(const CudaNative& native, const ScaleByNorms& args) {
  dispatch_device_float(args.x.dtype(), [&](auto tag) {
    dispatch_device_float(args.m.dtype(), [&](auto m_tag) {
      using Act = decltype(tag);
      using M = decltype(m_tag);
      const auto x = rows2<Act>(args.x), y = rows2<Act>(args.y);
      const auto* const m = reinterpret_cast<const M*>(args.m.raw());
      const auto* const n = reinterpret_cast<const float*>(args.n.raw());
      const auto minus = static_cast<float>(args.minus);
      constexpr int kWide = 4;  // 16 bytes of n
      if (aligned<8>({args.x, args.y}) &&
          aligned<8>({args.m.reshape({1, args.m.elements()}), args.n.reshape({1, args.n.elements()})})) {
        map<kWide>(native, x.count, x.columns, ByNorms<Act, M, kWide>{x, y, m, n, minus, args.accumulate});
      } else {
        map<1>(native, x.count, x.columns, ByNorms<Act, M, 1>{x, y, m, n, minus, args.accumulate});
      }
    });
  });
}

void dora_magnitude_gradient(const CudaNative& native, const DoraMagnitudeGradient& args) {
  if (args.dy.size(1) == 0) return;
  dispatch_device_float(args.dy.dtype(), [&](auto tag) {
    dispatch_device_float(args.dm.dtype(), [&](auto dm_tag) {
      using Act = decltype(tag);
      using Dm = decltype(dm_tag);
      const auto blocks = static_cast<unsigned>(ceil_div(args.dy.size(1), 32));
      magnitude_gradient_kernel<<<blocks, kThreads, 0, stream_of(native)>>>(
          rows2<Act>(args.dy), rows2<Act>(args.u), reinterpret_cast<const float*>(args.n.raw()),
          reinterpret_cast<Dm*>(args.dm.raw()), args.accumulate);
    });
  });
}

}  // namespace hawser::ops::cuda
