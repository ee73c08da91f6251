#include <cuda_fp8.h>

#include "base/philox.h"
#include "ops/cuda/column_sums.cuh"
#include "ops/gemm/gemm_cuda.h"

namespace hawser::ops::cuda {

namespace {

// N columns per thread; loads of eight rows are in flight at once.
template <class Dy, int N>
__global__ void __launch_bounds__(128) bias_partials_kernel(Rows2<const Dy> dy, float* partial, std::int64_t stride) {
  const std::int64_t c = (static_cast<std::int64_t>(blockIdx.x) * 128 + threadIdx.x) * N;
  if (c >= dy.columns) return;
  constexpr int kAhead = 8;
  Vec<float, N> sum{};
  const std::int64_t step = gridDim.y;
  std::int64_t t = blockIdx.y;
  for (; t + (kAhead - 1) * step < dy.count; t += kAhead * step) {
    Vec<Dy, N> rows[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) rows[a] = load<N>(dy.row(t + a * step) + c);
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const Vec<float, N> row = widen(rows[a]);
#pragma unroll
      for (int i = 0; i < N; ++i) sum.v[i] += row.v[i];
    }
  }
  for (; t < dy.count; t += step) {
    const Vec<float, N> row = load_float<N>(dy.row(t) + c);
#pragma unroll
    for (int i = 0; i < N; ++i) sum.v[i] += row.v[i];
  }
  store<N>(partial + blockIdx.y * stride + c, sum);
}

// Element `at` of a row of normal numbers.
__device__ __forceinline__ float normal(const RandomStream& random, std::int64_t index) {
  const PhiloxWords w = random.words(static_cast<std::uint64_t>(index));
  const float u = (static_cast<float>(w[0] >> 8) + 0.5f) * 0x1p-24f, v = static_cast<float>(w[1] >> 8) * 0x1p-24f;
  return sqrtf(-2.0f * __logf(u)) * __cosf(6.2831853f * v);
}

template <class T>
struct Random {
  RandomStream random;
  Rows2<T> to;
  __device__ void operator()(std::int64_t row, std::int64_t at) const {
    to.row(row)[at] = from_float<T>(normal(random, row * to.columns + at));
  }
};

struct RandomFp8 {
  RandomStream random;
  Rows2<std::uint8_t> to;
  __nv_fp8_interpretation_t format;
  __device__ void operator()(std::int64_t row, std::int64_t at) const {
    to.row(row)[at] = __nv_cvt_float_to_fp8(normal(random, row * to.columns + at), __NV_SATFINITE, format);
  }
};

template <class In, class Out, class Bias>
__global__ void simple_kernel(GemmProblem p) {
  const std::int64_t n = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x, m = blockIdx.y;
  if (n >= p.n) return;
  const auto* a = static_cast<const In*>(p.a);
  const auto* b = static_cast<const In*>(p.b);
  float sum = 0;
  for (std::int64_t k = 0; k < p.k; ++k) {
    sum += to_float(a[p.transpose_a ? k * p.lda + m : m * p.lda + k]) *
           to_float(b[p.transpose_b ? n * p.ldb + k : k * p.ldb + n]);
  }
  if (p.bias != nullptr) sum += to_float(static_cast<const Bias*>(p.bias)[n]);
  Out& c = static_cast<Out*>(p.c)[m * p.ldc + n];
  c = from_float<Out>(p.accumulate ? to_float(c) + sum : sum);
}

}  // namespace

void bias_gradient(const CudaNative& native, const BiasGradient& args) {
  const std::int64_t columns = args.dy.size(1), stride = round_up(columns, 16);
  dispatch_device_float(args.dy.dtype(), [&](auto tag) {
    using Dy = decltype(tag);
    constexpr int kWide = 16 / sizeof(Dy);
    const auto dy = rows2<Dy>(args.dy);
    const bool wide = aligned<kWide>({args.dy});
    // About eight blocks per SM.
    const std::int64_t across = ceil_div(columns, 128 * (wide ? kWide : 1));
    const int blocks = row_blocks(native, args.dy.size(0), columns, static_cast<int>(ceil_div(8, across)));
    auto* const partial = Scratch(native).take<float>(blocks * stride);
    const auto launch = [&](auto kernel) {
      kernel<<<dim3(static_cast<unsigned>(across), blocks), 128, 0, stream_of(native)>>>(
          {dy.data, dy.count, dy.columns, dy.stride}, partial, stride);
    };
    if (wide) {
      launch(bias_partials_kernel<Dy, kWide>);
    } else {
      launch(bias_partials_kernel<Dy, 1>);
    }
    sum_partials(native, partial, blocks, stride, args.db, args.accumulate, columns, args.scale);
  });
}

void fill_random(const CudaNative& native, void* data, DType dtype, std::int64_t rows, std::int64_t columns,
                 std::int64_t stride, std::uint64_t seed) {
  const RandomStream random(seed, 1);
  if (is_fp8(dtype)) {
    const auto format = dtype == DType::f8e4m3 ? __NV_E4M3 : __NV_E5M2;
    return map<1>(native, rows, columns,
                  RandomFp8{random, {static_cast<std::uint8_t*>(data), rows, columns, stride}, format});
  }
  dispatch_device_float(dtype, [&](auto tag) {
    using T = decltype(tag);
    map<1>(native, rows, columns, Random<T>{random, {static_cast<T*>(data), rows, columns, stride}});
  });
}

void multiply_simply(const CudaNative& native, const GemmProblem& p) {
  dispatch_device_float(p.in_a, [&](auto in) {
    dispatch_device_float(p.out, [&](auto out) {
      dispatch_device_float(p.bias_dtype, [&](auto bias) {
        // In slices of rows of C: the grid's second dim is limited to 65535.
        for (std::int64_t row = 0; row < p.m; row += 32768) {
          GemmProblem part = p;
          part.m = std::min<std::int64_t>(32768, p.m - row);
          part.a = static_cast<const std::byte*>(p.a) + row * (p.transpose_a ? 1 : p.lda) * size_of(p.in_a);
          part.c = static_cast<std::byte*>(p.c) + row * p.ldc * size_of(p.out);
          const dim3 grid(static_cast<unsigned>(ceil_div(p.n, 128)), static_cast<unsigned>(part.m));
          simple_kernel<decltype(in), decltype(out), decltype(bias)><<<grid, 128, 0, stream_of(native)>>>(part);
        }
      });
    });
  });
}

void set_rows(const CudaNative& native, const GemmProblem& problem) {
  GemmProblem p = problem;
  p.k = 0;
  multiply_simply(native, p);
}

}  // namespace hawser::ops::cuda
