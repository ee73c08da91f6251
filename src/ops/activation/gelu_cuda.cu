#include "ops/activation/gelu_cuda.cuh"

namespace hawser::ops::cuda {

namespace {

template <class Act, int N, Gelu Kind>
struct Forward {
  Rows2<Act> x, y;
  __device__ void operator()(std::int64_t row, std::int64_t at) const {
    Vec<float, N> values = load_float<N>(x.row(row) + at);
#pragma unroll
    for (int i = 0; i < N; ++i) values.v[i] *= gelu_point<Kind>(values.v[i]).share;
    store_float<N>(y.row(row) + at, values);
  }
};

template <class Act, int N, Gelu Kind>
struct Backward {
  Rows2<Act> x, dy, dx, y;
  __device__ void operator()(std::int64_t row, std::int64_t at) const {
    const Vec<Act, N> packed_x = load<N>(x.row(row) + at), packed_dy = load<N>(dy.row(row) + at);
    const Vec<float, N> values = widen(packed_x), g = widen(packed_dy);
    Vec<float, N> gradient, again;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const GeluPoint point = gelu_point<Kind>(values.v[i]);
      gradient.v[i] = g.v[i] * point.slope;
      again.v[i] = values.v[i] * point.share;
    }
    store_float<N>(dx.row(row) + at, gradient);
    if (y.data != nullptr) store_float<N>(y.row(row) + at, again);
  }
};

}  // namespace

void gelu_forward(const CudaNative& native, const GeluForward& args) {
  dispatch_device_float(args.y.dtype(), [&](auto tag) {
    dispatch_gelu(args.kind, [&](auto kind) {
      using Act = decltype(tag);
      constexpr int kWide = 16 / sizeof(Act);
      constexpr Gelu kKind = decltype(kind)::value;
      const auto x = rows2<Act>(args.x), y = rows2<Act>(args.y);
      if (aligned<kWide>({args.x, args.y})) {
        map<kWide>(native, y.count, y.columns, Forward<Act, kWide, kKind>{x, y});
      } else {
        map<1>(native, y.count, y.columns, Forward<Act, 1, kKind>{x, y});
      }
    });
  });
}

void gelu_backward(const CudaNative& native, const GeluBackward& args) {
  dispatch_device_float(args.dy.dtype(), [&](auto tag) {
    dispatch_gelu(args.kind, [&](auto kind) {
      using Act = decltype(tag);
      constexpr int kWide = 16 / sizeof(Act);
      constexpr Gelu kKind = decltype(kind)::value;
      const auto x = rows2<Act>(args.x), dy = rows2<Act>(args.dy), dx = rows2<Act>(args.dx), y = rows2<Act>(args.y);
      if (aligned<kWide>({args.x, args.dy, args.dx, args.y})) {
        map<kWide>(native, dy.count, dy.columns, Backward<Act, kWide, kKind>{x, dy, dx, y});
      } else {
        map<1>(native, dy.count, dy.columns, Backward<Act, 1, kKind>{x, dy, dx, y});
      }
    });
  });
}

}  // namespace hawser::ops::cuda
