// `rope`: rotary position embedding, in place. Rotates halves of a head, as most models of Hugging Face do.
//
//   angle          = positions[t] * frequencies[i]
//   x'[t,h,i]      = scale * (x[t,h,i]     * cos(angle) - x[t,h,i+D/2] * sin(angle))
//   x'[t,h,i+D/2]  = scale * (x[t,h,i+D/2] * cos(angle) + x[t,h,i]     * sin(angle))
//
// interleaved: dims 2i and 2i+1 are rotated in place of i and i+D/2 (GPT-J).
// The angle is a float64 product and is reduced in float64; its sine and cosine are float32. The result is exact to
// float32 rounding at positions up to 2^20 and beyond.
// inverse: rotates by -angle (times scale). This is the backward pass, since the rotation is orthogonal.
// x [T, H, D] act, rows may be padded (heads of a packed QKV row); positions [T] int32, >= 0;
// frequencies [R/2] float32, in radians per position. R <= D is even. Dims [R, D) do not change (partial rotary); in
// the formulas D is R.
// Source: Su et al., "RoFormer", 2021; transformers 4.x and 5.x modeling_rope_utils.py for the frequencies.
#pragma once

#include <vector>

#include "ops/run_op.h"

namespace hawser::ops {

struct Rope {
  TensorView x, positions, frequencies;
  double scale = 1.0;
  bool inverse = false;
  bool interleaved = false;
};

void rope(Stream& stream, const Rope& args);

enum class RopeKind { standard, linear, llama3, yarn };  // "default", "linear", "llama3", "yarn" in config.json

struct RopeConfig {
  RopeKind kind = RopeKind::standard;
  double theta = 10000.0;
  std::int64_t head_dim = 0;
  bool interleaved = false;                   // Rope::interleaved
  double factor = 1.0;                        // linear, llama3, yarn
  double low_freq_factor = 1.0;               // llama3
  double high_freq_factor = 4.0;              // llama3
  std::int64_t original_max_position = 8192;  // llama3, yarn: original_max_position_embeddings
  double beta_fast = 32.0, beta_slow = 1.0;   // yarn: rotations in original_max_position where the ramp begins and ends
  bool truncate = true;                       // yarn: the ends of the ramp are rounded outwards
  double mscale = 0, mscale_all_dim = 0;      // yarn, see rope_attention_factor(); 0: not set
  double attention_factor = 0;                // yarn; 0: computed
};

// Frequencies [head_dim / 2], in radians per position:
//   standard:  f = theta^(-2i / head_dim)
//   linear:    f / factor
//   llama3, with wavelength w = 2 pi / f:
//       w < original / high_freq_factor:  f
//       w > original / low_freq_factor:   f / factor
//       between:  (1 - s) * f / factor + s * f
//                 s = (original / w - low_freq_factor) / (high_freq_factor - low_freq_factor)
//   yarn, with r(n) = head_dim * ln(original / (2 pi n)) / (2 ln theta), the index of the dim with n rotations:
//       low  = max(floor(r(beta_fast)), 0), high = min(ceil(r(beta_slow)), head_dim - 1); without truncate not rounded
//       ramp = clamp((i - low) / (high - low), 0, 1); if low and high are equal, high is greater by 0.001
//       ramp * f / factor + (1 - ramp) * f
// Source of yarn: Peng et al., "YaRN", 2023; transformers 5.x `_compute_yarn_parameters`.
std::vector<float> rope_frequencies(const RopeConfig& config);

// The scale of cos and sin that the kind needs (Rope::scale, nn::AttentionConfig::rope_scale): 1, or for yarn
//   attention_factor, if it is set
//   m(mscale) / m(mscale_all_dim), if both are set, else m(1);  m(s) = 0.1 s ln(factor) + 1, or 1 if factor <= 1
double rope_attention_factor(const RopeConfig& config);

constexpr std::int64_t kRopeMaxHeadDim = 1024;  // on the CPU, the sines and cosines of one token are on the stack
HAWSER_BACKENDS_OF(rope, Rope);

}  // namespace hawser::ops
