// `rounded_to`, `store_weights`: how the CPU's updates write weights.
#pragma once

#include "ops/update/rounding.h"
#include "tensor/dtype_dispatch.h"

namespace hawser::ops::cpu {

// `x` as T. In bf16 it is rounded with `noise`, a word of RoundingNoise::words, if the rounding is stochastic.
template <class T>
T rounded_to(float x, const StochasticRounding& rounding, std::uint32_t noise) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
    if (rounding.step.empty()) return Bf16(x);
    Bf16 out;
    out.bits = rounded_stochastically(x, noise);
    return out;
  }
}

// Elements [begin, end) of `weight` to `compute`, if that is not empty.
template <class Weight>
void copy_to_compute(const Weight* weight, const TensorView& compute, std::int64_t begin, std::int64_t end) {
  if (compute.empty()) return;
  dispatch_float(compute.dtype(), [&](auto tag) {
    auto* const to = compute.data<decltype(tag)>();
    for (std::int64_t i = begin; i < end; ++i) to[i] = decltype(tag)(static_cast<float>(weight[i]));
  });
}

// weight[i] = value(weight[i], i), rounded, for elements [begin, end), and copy_to_compute.
template <class Value>
void store_weights(const TensorView& weight, const TensorView& compute, const StochasticRounding& rounding,
                   std::int64_t begin, std::int64_t end, const Value& value) {
  dispatch_float(weight.dtype(), [&](auto tag) {
    using Weight = decltype(tag);
    auto* const to = weight.data<Weight>();
    const bool random = !std::is_same_v<Weight, float> && !rounding.step.empty();
    const std::int32_t step = random ? *rounding.step.data<std::int32_t>() : 0;
    for (std::int64_t i = begin; i < end; ++i) {
      const float w = value(static_cast<float>(to[i]), i);
      to[i] = rounded_to<Weight>(w, rounding, random ? rounding.noise.words(i, step)[0] : 0);
    }
    copy_to_compute(to, compute, begin, end);
  });
}

}  // namespace hawser::ops::cpu
