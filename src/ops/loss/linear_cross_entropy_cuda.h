// CUDA backend of the fused head and loss. Arguments are already checked.
#pragma once

#include "base/units.h"
#include "ops/loss/linear_cross_entropy.h"

namespace hawser::ops::cuda {

// Workspace: float32 logits of a chunk of rows (overwritten by their gradients), then one loss per token.
struct LossLayout {
  std::int64_t rows = 0;    // of a chunk
  std::int64_t stride = 0;  // floats between rows of logits
  std::int64_t tokens = 0;

  LossLayout(std::int64_t all_tokens, std::int64_t vocabulary, std::int64_t chunk_rows)
      : rows(chunk_rows), stride(round_up(vocabulary, 64)), tokens(all_tokens) {}
  std::int64_t logits_bytes() const { return rows * stride * 4; }
  std::int64_t bytes() const { return logits_bytes() + round_up(tokens * 8, 64); }
};

void prepare(const CudaNative& native, const LinearCrossEntropy& args);

}  // namespace hawser::ops::cuda
