#include "ops/copy/scale.h"
#include "ops/cuda/kernel.cuh"

namespace hawser::ops::cuda {

namespace {

template <class Act, int N>
struct Times {
  Act* x;
  float factor;
  __device__ void operator()(std::int64_t, std::int64_t at) const {
    Vec<float, N> values = load_float<N>(x + at);
#pragma unroll
    for (int i = 0; i < N; ++i) values.v[i] *= factor;
    store_float<N>(x + at, values);
  }
};

}  // namespace

void scale(const CudaNative& native, const Scale& args) {
  dispatch_device_float(args.x.dtype(), [&](auto tag) {
    using Act = decltype(tag);
    constexpr int kWide = 16 / sizeof(Act);
    auto* const x = reinterpret_cast<Act*>(args.x.raw());
    const auto factor = static_cast<float>(args.factor);
    const Extent extent = extent_of({args.x});
    if (aligned_as<kWide>(extent, {args.x})) {
      map<kWide>(native, extent.rows, extent.columns, Times<Act, kWide>{x, factor});
    } else {
      map<1>(native, extent.rows, extent.columns, Times<Act, 1>{x, factor});
    }
  });
}

}  // namespace hawser::ops::cuda
