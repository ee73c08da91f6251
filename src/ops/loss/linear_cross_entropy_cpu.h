// CPU backend of the fused head and loss. Arguments are already checked.
#pragma once

#include "base/units.h"
#include "ops/loss/linear_cross_entropy.h"

namespace hawser::ops::cpu {

// Workspace: logits of a chunk (overwritten by their gradients), one loss per row, with LossChunks::sums_dweight and
// sums_dbias the float32 sums of dweight and dbias, scratch of the GEMMs.
struct LossLayout {
  LossChunks chunks;
  std::int64_t stride = 0;  // floats between rows of logits
  std::int64_t sum_elements = 0, bias_elements = 0;
  std::int64_t gemms = 0;

  std::int64_t losses() const { return chunks.rows * stride * 4; }
  std::int64_t sum() const { return losses() + round_up(chunks.rows * 8, 64); }
  std::int64_t bias_sum() const { return sum() + round_up(sum_elements * 4, 64); }
  std::int64_t scratch() const { return bias_sum() + round_up(bias_elements * 4, 64); }
  std::int64_t bytes() const { return scratch() + gemms; }
};
LossLayout loss_layout(const LinearCrossEntropy& call);

}  // namespace hawser::ops::cpu
