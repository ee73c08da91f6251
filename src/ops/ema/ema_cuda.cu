#include "ops/cuda/kernel.cuh"
#include "ops/ema/ema.h"

namespace hawser::ops::cuda {

namespace {

template <class Weight, int N>
struct Average {
  const Weight* weight;
  float* average;
  const std::int32_t *updates, *skip;  // skip may be null: never
  float share;                         // of the weight in the average

  __device__ void operator()(std::int64_t, std::int64_t at) const {
    if (skip != nullptr && *skip != 0) return;
    const bool first = *updates <= 1;
    const Vec<float, N> w = load_float<N>(weight + at);
    Vec<float, N> a = load_float<N>(average + at);
#pragma unroll
    for (int i = 0; i < N; ++i) a.v[i] = first ? w.v[i] : a.v[i] + share * (w.v[i] - a.v[i]);
    store_float<N>(average + at, a);
  }
};

}  // namespace

void ema(const CudaNative& native, const Ema& args) {
  dispatch_device_float(args.weight.dtype(), [&](auto tag) {
    using Weight = decltype(tag);
    const auto launch = [&]<int N>(std::integral_constant<int, N>) {
      map<N>(native, 1, args.weight.size(0),
             Average<Weight, N>{.weight = reinterpret_cast<const Weight*>(args.weight.raw()),
                                .average = args.average.data<float>(),
                                .updates = args.updates.data<std::int32_t>(),
                                .skip = args.skip.empty() ? nullptr : args.skip.data<std::int32_t>(),
                                .share = static_cast<float>(1.0 - args.decay)});
    };
    bool wide = args.weight.size(0) % 4 == 0;
    for (const TensorView& view : {args.weight, args.average}) {
      wide = wide && reinterpret_cast<std::uintptr_t>(view.raw()) % 16 == 0;
    }
    if (wide) {
      launch(std::integral_constant<int, 4>());
    } else {
      launch(std::integral_constant<int, 1>());
    }
  });
}

}  // namespace hawser::ops::cuda
