// CUDA backend of the fused head and loss. Arguments are already checked.
#pragma once

#include "base/units.h"
#include "ops/loss/linear_cross_entropy.h"

namespace hawser::ops::cuda {

// Workspace: float32 logits of a chunk of rows (overwritten by their gradients), one loss per token, and with
// LossChunks::sums_dbias and sums_dweight the float32 sums of dbias and dweight.
struct LossLayout {
  LossChunks chunks;
  std::int64_t stride = 0;  // floats between rows of logits
  std::int64_t tokens = 0, bias_elements = 0, sum_elements = 0;

  explicit LossLayout(const LinearCrossEntropy& call)
      : chunks(loss_chunks(call, DeviceKind::cuda)),
        stride(round_up(call.weight.size(0), 64)),
        tokens(call.x.size(0)),
        bias_elements(chunks.sums_dbias ? call.weight.size(0) : 0),
        sum_elements(chunks.sums_dweight ? call.weight.elements() : 0) {}
  std::int64_t logits_bytes() const { return round_up(chunks.rows * stride * 4, 256); }
  std::int64_t losses_bytes() const { return round_up(tokens * 8, 256); }
  std::int64_t bias_sum() const { return logits_bytes() + losses_bytes(); }
  std::int64_t sum() const { return bias_sum() + round_up(bias_elements * 4, 256); }
  std::int64_t bytes() const { return sum() + sum_elements * 4; }
};

void prepare(const CudaNative& native, const LinearCrossEntropy& args);

// loss_sum += losses[0] + ... + losses[count - 1], with what float32 loses in loss_sum[1].
void add_losses(const CudaNative& native, const double* losses, std::int64_t count, float* loss_sum);

}  // namespace hawser::ops::cuda
