// `alibi_slopes`: the slopes of ALiBi (AttentionCall::slopes).
#pragma once

#include <cstdint>
#include <vector>

namespace hawser::ops {

// The slopes of a model with `heads` query heads, at least one, with n the largest power of two up to `heads`:
//   head h < n:   2^(-8 (h + 1) / n)
//   head n + i:   2^(-4 (2 i + 1) / n), every second one of 2 n heads
// Source: Press et al., arXiv 2108.12409, and their code for numbers of heads that are no power of two, as in
// transformers' `build_alibi_tensor` of BLOOM.
std::vector<float> alibi_slopes(std::int64_t heads);

}  // namespace hawser::ops
