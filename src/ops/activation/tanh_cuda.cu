#include "ops/activation/tanh.h"
#include "ops/cuda/kernel.cuh"

namespace hawser::ops::cuda {

namespace {

template <class Act, int N>
struct Forward {
  Rows2<Act> x, y;
  __device__ void operator()(std::int64_t row, std::int64_t at) const {
    Vec<float, N> values = load_float<N>(x.row(row) + at);
#pragma unroll
    for (int i = 0; i < N; ++i) values.v[i] = tanhf(values.v[i]);
    store_float<N>(y.row(row) + at, values);
  }
};

template <class Act, int N>
struct Backward {
  Rows2<Act> x, dy, dx, y;
  __device__ void operator()(std::int64_t row, std::int64_t at) const {
    Vec<float, N> values = load_float<N>(x.row(row) + at), gradient = load_float<N>(dy.row(row) + at);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      values.v[i] = tanhf(values.v[i]);
      gradient.v[i] *= 1.0f - values.v[i] * values.v[i];
    }
    store_float<N>(dx.row(row) + at, gradient);
    if (y.data != nullptr) store_float<N>(y.row(row) + at, values);
  }
};

}  // namespace

void tanh_forward(const CudaNative& native, const TanhForward& args) {
  dispatch_device_float(args.y.dtype(), [&](auto tag) {
    using Act = decltype(tag);
    constexpr int kWide = 16 / sizeof(Act);
    const auto x = rows2<Act>(args.x), y = rows2<Act>(args.y);
    if (aligned<kWide>({args.x, args.y})) {
      map<kWide>(native, y.count, y.columns, Forward<Act, kWide>{x, y});
    } else {
      map<1>(native, y.count, y.columns, Forward<Act, 1>{x, y});
    }
  });
}

void tanh_backward(const CudaNative& native, const TanhBackward& args) {
  dispatch_device_float(args.dy.dtype(), [&](auto tag) {
    using Act = decltype(tag);
    constexpr int kWide = 16 / sizeof(Act);
    const auto x = rows2<Act>(args.x), dy = rows2<Act>(args.dy), dx = rows2<Act>(args.dx), y = rows2<Act>(args.y);
    if (aligned<kWide>({args.x, args.dy, args.dx, args.y})) {
      map<kWide>(native, dy.count, dy.columns, Backward<Act, kWide>{x, dy, dx, y});
    } else {
      map<1>(native, dy.count, dy.columns, Backward<Act, 1>{x, dy, dx, y});
    }
  });
}

}  // namespace hawser::ops::cuda
