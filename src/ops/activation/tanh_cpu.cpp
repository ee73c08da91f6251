#include <cmath>

#include "ops/activation/elementwise_cpu.h"
#include "ops/activation/tanh.h"

namespace hawser::ops::cpu {

void tanh_forward(const TanhForward& args) {
  each_forward(args, [](float x) { return std::tanh(x); });
}

void tanh_backward(const TanhBackward& args) {
  each_backward(args, [](float x) {
    const float y = std::tanh(x);
    return ActivationPoint{y, 1.0f - y * y};
  });
}

}  // namespace hawser::ops::cpu
