// CPU backend of AdamW; arguments are checked.
#pragma once

#include "ops/adamw/adamw.h"

namespace hawser::ops {

// The numbers of one update, worked out once in float64.
struct AdamStep {
  float beta1, one_minus_beta1, beta2, one_minus_beta2, keep, step_size, inverse_root_correction2, epsilon, coefficient;
};

namespace cpu {

void adamw(const AdamW& args);

}  // namespace cpu
}  // namespace hawser::ops
