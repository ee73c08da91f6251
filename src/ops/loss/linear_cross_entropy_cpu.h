// CPU backend of the fused head and loss. Arguments are already checked.
#pragma once

#include "base/units.h"
#include "ops/loss/linear_cross_entropy.h"

namespace hawser::ops::cpu {

// Workspace: logits of a chunk (overwritten by their gradients), one loss per row, scratch of the GEMMs.
struct LossLayout {
  std::int64_t rows = 0;    // of a chunk
  std::int64_t stride = 0;  // floats between rows of logits
  std::int64_t gemms = 0;

  std::int64_t logits_bytes() const { return rows * stride * 4; }
  std::int64_t losses_bytes() const { return round_up(rows * 8, 64); }
  std::int64_t bytes() const { return logits_bytes() + losses_bytes() + gemms; }
};
LossLayout loss_layout(std::int64_t tokens, std::int64_t channels, std::int64_t vocabulary, DType dtype,
                       std::int64_t rows);

}  // namespace hawser::ops::cpu
