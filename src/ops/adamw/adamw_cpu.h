// CPU backend of AdamW. Arguments are already checked.
#pragma once

#include "ops/adamw/adamw.h"

namespace hawser::ops {

// Constants of one update, computed once in float64.
struct AdamStep {
  float beta1, one_minus_beta1, beta2, one_minus_beta2, keep, step_size, inverse_root_correction2, epsilon, coefficient;
};

namespace cpu {

void adamw(const AdamW& args);

}  // namespace cpu
}  // namespace hawser::ops
