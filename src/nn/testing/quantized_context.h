// For tests: a context whose Linears and experts have a format.
#pragma once

#include "nn/testing/context.h"

namespace hawser::nn::testing {

// float32. Without a quantizer, nothing is rounded. Operands have no stored scales and amaxes, as with current and
// block scaling.
class QuantizedContext : public TestContext {
 public:
  QuantizedContext(Device& device, const Quantizer* quantizer, LinearFormat format)
      : TestContext(device, DType::f32), quantizer_(quantizer), format_(format) {}
  Quantization quantization(Site, Operand operand) const override {
    if (quantizer_ == nullptr) return {};
    return {.format = format_, .quantizer = quantizer_, .operand = operand, .scale = {}, .amax = {}};
  }

 private:
  const Quantizer* quantizer_;
  LinearFormat format_;
};

}  // namespace hawser::nn::testing
