#include "ops/copy/sum_parts.h"
#include "ops/cuda/kernel.cuh"

namespace hawser::ops::cuda {

namespace {

template <class T, int N>
struct Sum {
  const T *parts, *residual;
  T* y;
  std::int64_t elements;
  int count;
  __device__ void operator()(std::int64_t, std::int64_t at) const {
    Vec<float, N> sum = load_float<N>(parts + at);
    for (int p = 1; p < count; ++p) {
      const Vec<float, N> part = load_float<N>(parts + p * elements + at);
#pragma unroll
      for (int i = 0; i < N; ++i) sum.v[i] += part.v[i];
    }
    if (residual != nullptr) {
      const Vec<float, N> other = load_float<N>(residual + at);
#pragma unroll
      for (int i = 0; i < N; ++i) sum.v[i] = other.v[i] + rounded(sum.v[i]);
    }
    store_float<N>(y + at, sum);
  }

 private:
  static __device__ float rounded(float value) {
    if constexpr (std::is_same_v<T, float>) {
      return value;
    } else {
      return to_float(from_float<T>(value));
    }
  }
};

}  // namespace

void sum_parts(const CudaNative& native, const SumParts& args) {
  const std::int64_t elements = args.y.elements();
  const int count = static_cast<int>(args.parts.elements() / elements);
  dispatch_device_float(args.y.dtype(), [&](auto tag) {
    using T = decltype(tag);
    const auto pointer = [](const TensorView& view) {
      return view.empty() ? nullptr : reinterpret_cast<T*>(view.raw());
    };
    const auto launch = [&]<int N>(std::integral_constant<int, N>) {
      map<N>(native, 1, elements,
             Sum<T, N>{pointer(args.parts), pointer(args.residual), pointer(args.y), elements, count});
    };
    constexpr int kWide = 16 / static_cast<int>(sizeof(T));
    if (aligned_as<kWide>({1, elements}, {args.y, args.parts, args.residual})) {
      launch(std::integral_constant<int, kWide>());
    } else {
      launch(std::integral_constant<int, 1>());
    }
  });
}

}  // namespace hawser::ops::cuda
