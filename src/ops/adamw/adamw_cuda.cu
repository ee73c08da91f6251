#include "ops/adamw/adamw.h"
#include "ops/cuda/kernel.cuh"
#include "ops/quantize/matrices_cuda.cuh"

namespace hawser::ops::cuda {

namespace {

template <class Gradient>
struct Update {
  float* weight;
  const Gradient* gradient;
  float* exp_avg;
  float* exp_avg_sq;
  Bf* compute;               // null: none
  const float* hyper;        // AdamHyper, on the device
  const float* coefficient;  // null: 1
  const std::int32_t* skip;  // null: never
  AdamStep* step;
  float* amax;
  double beta1, beta2, weight_decay;
  float epsilon;
};

__global__ void hyper_kernel(const float* learning_rate, const std::int32_t* step, float* hyper, double beta1,
                             double beta2) {
  const double n = max(1, *step);
  hyper[0] = *learning_rate;
  hyper[1] = static_cast<float>(1.0 - pow(beta1, n));
  hyper[2] = static_cast<float>(1.0 - pow(beta2, n));
}

// Computes AdamStep in float64, with the same result as on the CPU. One thread, once for all blocks.
template <class Gradient>
__global__ void step_kernel(Update<Gradient> u) {
  const double learning_rate = u.hyper[0], correction1 = u.hyper[1], correction2 = u.hyper[2];
  *u.step = {.beta1 = static_cast<float>(u.beta1),
             .one_minus_beta1 = static_cast<float>(1.0 - u.beta1),
             .beta2 = static_cast<float>(u.beta2),
             .one_minus_beta2 = static_cast<float>(1.0 - u.beta2),
             .keep = static_cast<float>(1.0 - learning_rate * u.weight_decay),
             .step_size = static_cast<float>(learning_rate / correction1),
             .inverse_root_correction2 = static_cast<float>(1.0 / sqrt(correction2)),
             .epsilon = u.epsilon,
             .coefficient = u.coefficient != nullptr ? *u.coefficient : 1.0f};
}

// Fused multiply-adds are explicit: the compiler's choice of them differs between kernels, and one step has the same
// bits with amaxes and without, at any alignment.
__device__ __forceinline__ void advance(const AdamStep& s, float gradient, float& w, float& m, float& v) {
  const float g = gradient * s.coefficient;
  m = fmaf(s.beta1, m, s.one_minus_beta1 * g);
  v = fmaf(s.beta2, v, s.one_minus_beta2 * g * g);
  w = fmaf(s.keep, w, -(s.step_size * m / fmaf(sqrtf(v), s.inverse_root_correction2, s.epsilon)));
}

// Memory traffic bounds the kernel (measured: docs/performance.md): it reads weight, gradient and both moments once and
// writes weight, moments and compute_weight once. A thread has N elements, 16 bytes of float32 if all views are
// aligned, and issues their loads before it reads `skip` and the constants. The launch bounds keep 8 blocks on an SM,
// so that enough loads are on their way. Elements do not depend on each other. kMeasures: raises Update::amax of the
// elements' matrices in the same pass, since the weights are in registers. It takes more registers: 6 blocks. A maximum
// does not depend on an order.
template <class Gradient, int N, bool kMeasures>
__global__ void __launch_bounds__(kTileThreads, kMeasures ? 6 : 8)
    adamw_kernel(Update<Gradient> u, std::int64_t begin, std::int64_t end, const __grid_constant__ MatrixTable table) {
  const std::int64_t first = begin + static_cast<std::int64_t>(blockIdx.x) * kTileThreads * N,
                     at = first + static_cast<std::int64_t>(threadIdx.x) * N;
  const bool whole = at + N <= end;
  Vec<float, N> w{}, m{}, v{};
  Vec<Gradient, N> packed{};
  if (whole) {
    w = load<N>(u.weight + at);
    m = load<N>(u.exp_avg + at);
    v = load<N>(u.exp_avg_sq + at);
    packed = load<N>(u.gradient + at);
  }
  const bool skips = u.skip != nullptr && *u.skip != 0;
  const auto update = [&] {
    if (skips) return;
    const AdamStep step = *u.step;
    const Vec<float, N> g = widen(packed);
    if (whole) {
#pragma unroll
      for (int i = 0; i < N; ++i) advance(step, g.v[i], w.v[i], m.v[i], v.v[i]);
      store<N>(u.weight + at, w);
      store<N>(u.exp_avg + at, m);
      store<N>(u.exp_avg_sq + at, v);
      if (u.compute != nullptr) store_float<N>(u.compute + at, w);
      return;
    }
    for (std::int64_t i = at; i < end; ++i) {
      advance(step, to_float(u.gradient[i]), u.weight[i], u.exp_avg[i], u.exp_avg_sq[i]);
      if (u.compute != nullptr) u.compute[i] = from_float<Bf>(u.weight[i]);
    }
  };
  if constexpr (kMeasures) {
    __shared__ PartMaxima::Memory memory;
    PartMaxima maxima(table, u.amax, first, min(first + kTileThreads * N, end), memory);
    update();
    for (int i = 0; !whole && i < N && at + i < end; ++i) w.v[i] = u.weight[at + i];
    maxima.take(at, w);
    maxima.finish();
  } else {
    update();
  }
}

template <class T>
T* pointer(const TensorView& view) {
  return reinterpret_cast<T*>(view.raw());
}

}  // namespace

void adam_hyper(const CudaNative& native, const AdamHyperOfStep& args) {
  hyper_kernel<<<1, 1, 0, stream_of(native)>>>(args.learning_rate.data<float>(), args.step.data<std::int32_t>(),
                                               args.hyper.data<float>(), args.beta1, args.beta2);
}

void adamw(const CudaNative& native, const AdamW& args) {
  const std::int64_t count = args.weight.size(0);
  if (count == 0) return;
  bool wide = true;
  for (const TensorView& view : {args.weight, args.gradient, args.exp_avg, args.exp_avg_sq, args.compute_weight}) {
    wide = wide && reinterpret_cast<std::uintptr_t>(view.raw()) % 16 == 0;
  }
  dispatch_device_float(args.gradient.dtype(), [&](auto tag) {
    using Gradient = decltype(tag);
    const Update<Gradient> update{.weight = pointer<float>(args.weight),
                                  .gradient = pointer<const Gradient>(args.gradient),
                                  .exp_avg = pointer<float>(args.exp_avg),
                                  .exp_avg_sq = pointer<float>(args.exp_avg_sq),
                                  .compute = pointer<Bf>(args.compute_weight),
                                  .hyper = pointer<const float>(args.hyper),
                                  .coefficient = pointer<const float>(args.coefficient),
                                  .skip = pointer<const std::int32_t>(args.skip),
                                  .step = Scratch(native).take<AdamStep>(1),
                                  .amax = pointer<float>(args.amax),
                                  .beta1 = args.beta1,
                                  .beta2 = args.beta2,
                                  .weight_decay = args.weight_decay,
                                  .epsilon = static_cast<float>(args.epsilon)};
    step_kernel<<<1, 1, 0, stream_of(native)>>>(update);
    const auto launch = [&](auto n, auto measures, std::int64_t begin, std::int64_t end, const MatrixTable& table) {
      constexpr int kN = decltype(n)::value;
      const auto blocks = static_cast<unsigned>(ceil_div(end - begin, kTileThreads * kN));
      adamw_kernel<Gradient, kN, decltype(measures)::value>
          <<<blocks, kTileThreads, 0, stream_of(native)>>>(update, begin, end, table);
    };
    each_table(args.matrices, count, [&](std::int64_t begin, std::int64_t end, const MatrixTable& table) {
      const auto measured = [&](auto n) {
        if (args.amax.empty()) return launch(n, std::false_type(), begin, end, table);
        launch(n, std::true_type(), begin, end, table);
      };
      if (wide && begin % 4 == 0) return measured(std::integral_constant<int, 4>());
      measured(std::integral_constant<int, 1>());
    });
  });
}

}  // namespace hawser::ops::cuda
