// `StoreWeight`: how updates on a GPU write weights. `data_or_null`: the data of a view that may be empty.
#pragma once

#include "ops/cuda/kernel.cuh"
#include "ops/update/update_math.h"

namespace hawser::ops::cuda {

template <class T>
T* data_or_null(const TensorView& view) {
  return view.empty() ? nullptr : reinterpret_cast<T*>(view.raw());
}

// `x`, rounded to bf16 with `noise`, a word of RoundingNoise::words.
__device__ __forceinline__ float rounded_to_bf16(float x, std::uint32_t noise) {
  return __uint_as_float(static_cast<std::uint32_t>(rounded_stochastically(x, noise)) << 16);
}

// Weights and their copy for layers.
template <class Weight, class Compute>
struct StoreWeight {
  Weight* weight;
  Compute* compute;            // null: none
  const std::int32_t* number;  // of the step. Null: rounds to the nearest
  RoundingNoise noise;

  __device__ float load(std::int64_t i) const { return to_float(weight[i]); }
  __device__ void store(std::int64_t i, float w) const {
    if constexpr (std::is_same_v<Weight, Bf>) {
      if (number != nullptr) w = rounded_to_bf16(w, noise.words(i, *number)[0]);
    }
    weight[i] = from_float<Weight>(w);
    if (compute != nullptr) compute[i] = from_float<Compute>(to_float(weight[i]));
  }
};

// Calls body with the StoreWeight of the arguments' weight, compute_weight and rounding.
template <class Args, class Body>
void with_stored_weight(const Args& args, const Body& body) {
  const DType compute = args.compute_weight.empty() ? DType::bf16 : args.compute_weight.dtype();
  dispatch_device_float(args.weight.dtype(), [&](auto weight) {
    dispatch_device_float(compute, [&](auto computed) {
      using Weight = decltype(weight);
      using Compute = decltype(computed);
      body(StoreWeight<Weight, Compute>{.weight = data_or_null<Weight>(args.weight),
                                        .compute = data_or_null<Compute>(args.compute_weight),
                                        .number = data_or_null<const std::int32_t>(args.rounding.step),
                                        .noise = args.rounding.noise});
    });
  });
}

// Computes UpdateStep in float64, with the same result as on the CPU. One thread, once for all blocks.
static __global__ void update_step_kernel(const float* hyper, const float* coefficient, UpdateStep* step,
                                          UpdateConstants constants) {
  *step = update_step(constants, hyper[0], hyper[1], sqrt(static_cast<double>(hyper[2])),
                      coefficient != nullptr ? *coefficient : 1.0f);
}

}  // namespace hawser::ops::cuda
