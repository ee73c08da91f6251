// `TwoPassFp8`: FP8 without the ops that write it themselves: each input and gradient is written in the compute dtype,
// then rounded. For comparisons by memcmp.
#pragma once

#include <optional>

#include "nn/precision/fp8_scaling.h"

namespace hawser::testing {

class TwoPassFp8 : public nn::Fp8Scaling {
 public:
  using nn::Fp8Scaling::Fp8Scaling;
  std::optional<ops::Fp8Output> output(nn::LayerContext&, const nn::Quantization&, const Shape&) const override {
    return {};
  }
};

}  // namespace hawser::testing
