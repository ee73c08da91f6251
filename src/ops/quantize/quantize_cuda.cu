#include "ops/cuda/kernel.cuh"
#include "ops/quantize/quantize.h"
#include "ops/quantize/quantize_tiles.cuh"
#include "ops/quantize/scale_of.h"

namespace hawser::ops::cuda {

namespace {

constexpr int kThreads = 256;

template <class X>
struct PlainRows {
  Rows2<const X> x;
  bool wide;
  template <bool kFull>
  __device__ __forceinline__ int of_columns(std::int64_t) const {
    return 0;
  }
  template <bool kFull>
  __device__ __forceinline__ auto load(std::int64_t row, std::int64_t column) const {
    return part_of_row<kFull>(x.row(row), column, x.columns);
  }
  __device__ __forceinline__ Vec<float, kThreadColumns> values(std::int64_t, int,
                                                               const Vec<X, kThreadColumns>& loaded) const {
    return widen(loaded);
  }
};

template <class X>
void quantize_rows(const CudaNative& native, const Quantize& args) {
  const auto x = rows2<X>(args.x);
  const PlainRows<X> rows{{x.data, x.count, x.columns, x.stride}, aligned<kThreadColumns>({args.x})};
  dispatch_fp8_format(args.output().dtype(), [&](auto format) {
    quantize_tiles<decltype(format)::value>(native, rows, x.count, x.columns, args.output());
  });
}

// A thread takes N elements of a row at a time; the threads of the grid stride over the vectors of all rows.
template <class X, int N>
__global__ void __launch_bounds__(kThreads)
    amax_kernel(Rows2<const X> x, const std::int32_t* mask, const std::int32_t* limit, float* out) {
  __shared__ std::uint32_t maxima[32];
  const std::int64_t rows = limit == nullptr ? x.count : min(x.count, static_cast<std::int64_t>(*limit));
  const std::int64_t across = ceil_div(x.columns, N), count = rows * across;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  std::uint32_t found = 0;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += step) {
    const std::int64_t row = i / across, column = i % across * N;
    if (mask != nullptr && mask[row] == 0) continue;
    const Vec<float, N> values = load_float<N>(x.row(row) + column);
#pragma unroll
    for (int c = 0; c < N; ++c) found = max(found, size_bits(values.v[c]));
  }
  const std::uint32_t most = block_max(found, maxima);
  if (threadIdx.x == 0) take_maximum(out, most);
}

__global__ void scales_kernel(const float* amaxes, float* scales, std::int64_t count, ScaleOf of, bool keeps,
                              float otherwise) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const float amax = amaxes[i];
  if (isfinite(amax) && amax != 0) {
    scales[i] = of(amax);
  } else if (!keeps) {
    scales[i] = otherwise;
  }
}

__global__ void delayed_kernel(const float* amaxes, float* history, float* scales, const std::int32_t* skip,
                               std::int64_t count, std::int64_t length, bool most_recent, std::int32_t refreshes,
                               ScaleOf of_x, ScaleOf of_dy) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count || (*skip != 0 && *skip != refreshes)) return;
  const float amax = amaxes[i];
  if (!isfinite(amax) || amax == 0) return;
  float* const row = history + i * length;
  float most = amax;
  for (std::int64_t h = length - 1; h > 0; --h) {
    row[h] = row[h - 1];
    most = fmaxf(most, row[h]);
  }
  row[0] = amax;
  scales[i] = (i % 2 == 0 ? of_x : of_dy)(most_recent ? amax : most);
}

// Dequantizes weights in steps that read them unquantized: it is not tuned. A matrix has `count` elements; blockIdx.y
// is the matrix.
template <class Y>
__global__ void __launch_bounds__(kThreads) dequantize_kernel(const std::uint8_t* q, const float* scale, Y* y,
                                                              std::int64_t count, __nv_fp8_interpretation_t format) {
  q += blockIdx.y * count;
  y += blockIdx.y * count;
  scale += blockIdx.y;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  const float factor = *scale;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += step) {
    const __half_raw value = __nv_cvt_fp8_to_halfraw(q[i], format);  // exact
    y[i] = from_float<Y>(factor * __half2float(__half(value)));
  }
}

}  // namespace

void quantize(const CudaNative& native, const Quantize& args) {
  dispatch_device_float(args.x.dtype(), [&](auto tag) { quantize_rows<decltype(tag)>(native, args); });
}

void dequantize(const CudaNative& native, const Dequantize& args) {
  if (args.q.elements() == 0) return;
  const std::int64_t matrices = args.scale.elements(), count = args.q.elements() / matrices;
  dispatch_device_float(args.y.dtype(), [&](auto tag) {
    using Y = decltype(tag);
    const dim3 blocks(static_cast<unsigned>(std::clamp<std::int64_t>(ceil_div(count, kThreads * 8), 1, 1056)),
                      static_cast<unsigned>(matrices));
    dequantize_kernel<Y><<<blocks, kThreads, 0, stream_of(native)>>>(
        reinterpret_cast<const std::uint8_t*>(args.q.raw()), args.scale.data<float>(),
        reinterpret_cast<Y*>(args.y.raw()), count, args.q.dtype() == DType::f8e4m3 ? __NV_E4M3 : __NV_E5M2);
  });
}

void amax(const CudaNative& native, const Amax& args) {
  const cudaStream_t stream = stream_of(native);
  if (!args.accumulate) HAWSER_CUDA_CHECK(cudaMemsetAsync(args.out.raw(), 0, sizeof(float), stream));
  if (args.x.elements() == 0) return;
  dispatch_device_float(args.x.dtype(), [&](auto tag) {
    using X = decltype(tag);
    constexpr int kWide = 16 / sizeof(X);
    const auto* const mask = args.mask.empty() ? nullptr : args.mask.data<std::int32_t>();
    const auto* const limit = args.row_count.empty() ? nullptr : args.row_count.data<std::int32_t>();
    const TensorView matrix =
        args.x.rank() == 1 ? args.x.reshape(mask == nullptr ? Shape{1, args.x.size(0)} : Shape{args.x.size(0), 1})
                           : args.x;
    const bool wide = aligned<kWide>({matrix});
    const auto rows = rows2<X>(matrix);
    const Rows2<const X> x{rows.data, rows.count, rows.columns, rows.stride};
    const std::int64_t items = x.count * ceil_div(x.columns, wide ? kWide : 1);
    const auto blocks = static_cast<unsigned>(std::clamp<std::int64_t>(ceil_div(items, kThreads * 8), 1, 1056));
    if (wide) {
      amax_kernel<X, kWide><<<blocks, kThreads, 0, stream>>>(x, mask, limit, args.out.data<float>());
    } else {
      amax_kernel<X, 1><<<blocks, kThreads, 0, stream>>>(x, mask, limit, args.out.data<float>());
    }
  });
}

void scales_of_amaxes(const CudaNative& native, const ScalesOfAmaxes& args) {
  const std::int64_t count = args.amax.elements();
  if (count == 0) return;
  scales_kernel<<<static_cast<unsigned>(ceil_div(count, 128)), 128, 0, stream_of(native)>>>(
      args.amax.data<float>(), args.scales.data<float>(), count, scale_of(args.dtype, args.rule),
      !args.otherwise.has_value(), args.otherwise.value_or(0));
}

void delayed_scales(const CudaNative& native, const DelayedScales& args) {
  const std::int64_t count = args.history.size(0);
  if (count == 0) return;
  delayed_kernel<<<static_cast<unsigned>(ceil_div(count, 128)), 128, 0, stream_of(native)>>>(
      args.amax.data<float>(), args.history.data<float>(), args.scales.data<float>(), args.skip.data<std::int32_t>(),
      count, args.history.size(1), args.most_recent, args.refreshes, scale_of(DType::f8e4m3, args.rule),
      scale_of(DType::f8e5m2, args.rule));
}

}  // namespace hawser::ops::cuda
