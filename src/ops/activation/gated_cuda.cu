#include "ops/activation/gated_cuda.cuh"

namespace hawser::ops::cuda {

namespace {

template <class Act, Gate kKind, int N>
struct Forward {
  Rows2<Act> gate_up, y;
  __device__ void operator()(std::int64_t row, std::int64_t at) const {
    const Act* const from = gate_up.row(row) + at;
    const Vec<Act, N> packed_gate = load<N>(from), packed_up = load<N>(from + y.columns);
    const Vec<float, N> gate = widen(packed_gate), up = widen(packed_up);
    Vec<float, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) out.v[i] = gate_point<Act, kKind>(gate.v[i]).value * up.v[i];
    store_float<N>(y.row(row) + at, out);
  }
};

template <class Act, Gate kKind, int N>
struct Backward {
  Rows2<Act> gate_up, dy, dgate_up, y;
  __device__ void operator()(std::int64_t row, std::int64_t at) const {
    const Act* const from = gate_up.row(row) + at;
    const Vec<Act, N> packed_gate = load<N>(from), packed_up = load<N>(from + dy.columns),
                      packed_dy = load<N>(dy.row(row) + at);
    const Vec<float, N> gate = widen(packed_gate), up = widen(packed_up), g = widen(packed_dy);
    Vec<float, N> dgate, dup, again;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const GatePoint at = gate_point<Act, kKind>(gate.v[i]);
      dgate.v[i] = g.v[i] * up.v[i] * at.slope;
      dup.v[i] = g.v[i] * at.value;
      again.v[i] = at.value * up.v[i];
    }
    Act* const to = dgate_up.row(row) + at;
    store_float<N>(to, dgate);
    store_float<N>(to + dy.columns, dup);
    if (y.data != nullptr) store_float<N>(y.row(row) + at, again);
  }
};

// gate and up are each aligned to 16 bytes: the hidden size must be a multiple of N, too.
template <int N>
bool wide(std::initializer_list<TensorView> halves, std::initializer_list<TensorView> wholes) {
  return aligned<N>(halves) && aligned<2 * N>(wholes);
}

}  // namespace

void gated_forward(const CudaNative& native, const GatedForward& args) {
  if (!args.fp8.empty()) return gated_forward_fp8(native, args);
  dispatch_device_float(args.y.dtype(), [&](auto tag) {
    dispatch_gate(args.kind, [&](auto kind) {
      using Act = decltype(tag);
      constexpr Gate kKind = decltype(kind)::value;
      constexpr int kWide = 16 / sizeof(Act);
      const auto gate_up = rows2<Act>(args.gate_up), y = rows2<Act>(args.y);
      if (wide<kWide>({args.y}, {args.gate_up})) {
        map<kWide>(native, y.count, y.columns, Forward<Act, kKind, kWide>{gate_up, y});
      } else {
        map<1>(native, y.count, y.columns, Forward<Act, kKind, 1>{gate_up, y});
      }
    });
  });
}

void gated_backward(const CudaNative& native, const GatedBackward& args) {
  if (!args.dgate_up_fp8.empty()) return gated_backward_fp8(native, args);
  dispatch_device_float(args.dy.dtype(), [&](auto tag) {
    dispatch_gate(args.kind, [&](auto kind) {
      using Act = decltype(tag);
      constexpr Gate kKind = decltype(kind)::value;
      constexpr int kWide = 16 / sizeof(Act);
      const auto gate_up = rows2<Act>(args.gate_up), dy = rows2<Act>(args.dy), dgate_up = rows2<Act>(args.dgate_up),
                 y = rows2<Act>(args.y);
      if (wide<kWide>({args.dy, args.y}, {args.gate_up, args.dgate_up})) {
        map<kWide>(native, dy.count, dy.columns, Backward<Act, kKind, kWide>{gate_up, dy, dgate_up, y});
      } else {
        map<1>(native, dy.count, dy.columns, Backward<Act, kKind, 1>{gate_up, dy, dgate_up, y});
      }
    });
  });
}

}  // namespace hawser::ops::cuda
