#include "ops/bias/add_bias.h"
#include "ops/cuda/kernel.cuh"

namespace hawser::ops::cuda {

namespace {

template <class Y, class B, int N>
struct Plus {
  Rows2<Y> y;
  const B* bias;
  __device__ void operator()(std::int64_t row, std::int64_t at) const {
    Y* const to = y.row(row) + at;
    Vec<float, N> out = load_float<N>(to);
    const Vec<float, N> b = load_float<N>(bias + at);
#pragma unroll
    for (int i = 0; i < N; ++i) out.v[i] += b.v[i];
    store_float<N>(to, out);
  }
};

}  // namespace

void add_bias(const CudaNative& native, const AddBias& args) {
  dispatch_device_float(args.y.dtype(), [&](auto y_tag) {
    dispatch_device_float(args.bias.dtype(), [&](auto bias_tag) {
      using Y = decltype(y_tag);
      using B = decltype(bias_tag);
      const auto y = rows2<Y>(args.y);
      const auto* bias = reinterpret_cast<const B*>(args.bias.raw());
      if (aligned<8>({args.y}) && reinterpret_cast<std::uintptr_t>(bias) % 16 == 0) {
        constexpr int kWide = 16 / std::max(sizeof(Y), sizeof(B));
        map<kWide>(native, y.count, y.columns, Plus<Y, B, kWide>{y, bias});
      } else {
        map<1>(native, y.count, y.columns, Plus<Y, B, 1>{y, bias});
      }
    });
  });
}

}  // namespace hawser::ops::cuda
