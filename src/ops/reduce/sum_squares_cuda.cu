#include "ops/cuda/kernel.cuh"
#include "ops/reduce/sum_squares.h"

namespace hawser::ops::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kMaxBlocks = 1056;  // eight on each of 132 SMs; the count alone determines the number below that

// Squares of bf16 are exact in float32, and short sums of them are accurate enough in float32. float32 is squared in
// float64.
template <class T, int N>
__device__ __forceinline__ double squares(const Vec<T, N>& x) {
  if constexpr (std::is_same_v<T, Bf>) {
    const Vec<float, N> v = widen(x);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) sum += v.v[i] * v.v[i];
    return sum;
  } else {
    double sum = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) sum += static_cast<double>(x.v[i]) * static_cast<double>(x.v[i]);
    return sum;
  }
}

// head: number of elements before the first 16-byte boundary. Block 0 handles them and the tail.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    squares_kernel(const T* x, std::int64_t head, std::int64_t count, double* partial) {
  __shared__ double shared[32];
  constexpr int kAhead = 4;
  const std::int64_t vectors = (count - head) / N;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  double sum = 0;
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (; i + (kAhead - 1) * step < vectors; i += kAhead * step) {
    Vec<T, N> v[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) v[a] = load<N>(x + head + (i + a * step) * N);
#pragma unroll
    for (int a = 0; a < kAhead; ++a) sum += squares(v[a]);
  }
  for (; i < vectors; i += step) sum += squares(load<N>(x + head + i * N));
  if (blockIdx.x == 0) {
    const std::int64_t tail = head + vectors * N;
    for (std::int64_t j = threadIdx.x; j < head; j += kThreads) sum += squares(Vec<T, 1>{x[j]});
    for (std::int64_t j = tail + threadIdx.x; j < count; j += kThreads) sum += squares(Vec<T, 1>{x[j]});
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads)
    total_kernel(const double* partial, int blocks, float* out, bool accumulate) {
  __shared__ double shared[32];
  double sum = 0;
  for (int b = threadIdx.x; b < blocks; b += kThreads) sum += partial[b];
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) *out = static_cast<float>(accumulate ? static_cast<double>(*out) + sum : sum);
}

template <class T>
void total(const CudaNative& native, const T* x, std::int64_t count, float* out, bool accumulate) {
  constexpr int kWide = 16 / sizeof(T);
  const auto off = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(x) % 16 / sizeof(T));
  const std::int64_t head = std::min<std::int64_t>(count, (kWide - off) % kWide);
  const auto blocks = static_cast<int>(std::clamp<std::int64_t>(ceil_div(count, kThreads * kWide * 4), 1, kMaxBlocks));
  auto* const partial = Scratch(native).take<double>(blocks);
  squares_kernel<T, kWide><<<blocks, kThreads, 0, stream_of(native)>>>(x, head, count, partial);
  total_kernel<<<1, kThreads, 0, stream_of(native)>>>(partial, blocks, out, accumulate);
}

__global__ void clip_kernel(const float* sum_squares, const float* loss_scale, double max_norm, float* norm_out,
                            float* coefficient, std::int32_t* skip) {
  const double scale = loss_scale == nullptr ? 1.0 : *loss_scale;
  const double norm = sqrt(static_cast<double>(*sum_squares)) / scale;
  double factor = (max_norm == 0 ? 1.0 : fmin(1.0, max_norm / (norm + 1.0e-6))) / scale;
  if (!isfinite(norm)) {
    factor = 0;
    if (skip != nullptr) *skip = 1;
  }
  *coefficient = static_cast<float>(factor);
  if (norm_out != nullptr) *norm_out = static_cast<float>(norm);
}

}  // namespace

void sum_squares(const CudaNative& native, const SumSquares& args) {
  dispatch_device_float(args.x.dtype(), [&](auto tag) {
    total(native, reinterpret_cast<const decltype(tag)*>(args.x.raw()), args.x.elements(), args.out.data<float>(),
          args.accumulate);
  });
}

void segment_sum_squares(const CudaNative& native, const SegmentSumSquares& args) {
  dispatch_device_float(args.x.dtype(), [&](auto tag) {
    const auto* x = reinterpret_cast<const decltype(tag)*>(args.x.raw());
    std::int64_t begin = 0;
    for (std::size_t s = 0; s < args.ends.size(); ++s) {
      total(native, x + begin, args.ends[s] - begin, args.out.data<float>() + s, args.accumulate);
      begin = args.ends[s];
    }
  });
}

void clip_coefficient(const CudaNative& native, const ClipCoefficient& args) {
  clip_kernel<<<1, 1, 0, stream_of(native)>>>(
      args.sum_squares.data<float>(), args.loss_scale.empty() ? nullptr : args.loss_scale.data<float>(), args.max_norm,
      args.norm_out.empty() ? nullptr : args.norm_out.data<float>(), args.coefficient.data<float>(),
      args.skip.empty() ? nullptr : args.skip.data<std::int32_t>());
}

}  // namespace hawser::ops::cuda
