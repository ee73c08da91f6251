// Rotary position embedding, in place, halves rotated as Hugging Face does.
//
//   angle = positions[t] * frequencies[i]                        (float64 product, reduced, then float32 sine and
//   cosine) x'[t,h,i]       = scale * (x[t,h,i] cos(angle)       - x[t,h,i+D/2] sin(angle)) x'[t,h,i+D/2]   = scale *
//   (x[t,h,i+D/2] cos(angle)   + x[t,h,i] sin(angle))
// inverse: the rotation by -angle (times scale): the backward pass, since the rotation is orthogonal.
//   x [T, H, D] act, D even, rows may be padded (heads of a packed QKV row); positions [T] int32, >= 0;
//   frequencies [D/2] float32, radians a position. Exact to float32 rounding at positions up to 2^20 and beyond.
//
// Source: Su et al., "RoFormer", 2021; transformers 4.x and 5.x modeling_rope_utils.py for the frequencies.
#pragma once

#include <vector>

#include "ops/common.h"

namespace hawser::ops {

struct Rope {
  TensorView x, positions, frequencies;
  double scale = 1.0;
  bool inverse = false;
};

void rope(Stream& stream, const Rope& args);

enum class RopeKind { standard, linear, llama3 };  // "default", "linear", "llama3" in config.json

struct RopeConfig {
  RopeKind kind = RopeKind::standard;
  double theta = 10000.0;
  std::int64_t head_dim = 0;
  double factor = 1.0;                        // linear, llama3
  double low_freq_factor = 1.0;               // llama3
  double high_freq_factor = 4.0;              // llama3
  std::int64_t original_max_position = 8192;  // llama3: original_max_position_embeddings
};

// [head_dim / 2], radians a position:
//   standard  theta^(-2i / head_dim)
//   linear    standard / factor
//   llama3    wavelength w = 2 pi / f;  w < original / high_freq_factor: f;  w > original / low_freq_factor: f /
//   factor;
//             between: (1 - s) f / factor + s f with s = (original / w - low) / (high - low)
std::vector<float> rope_frequencies(const RopeConfig& config);

}  // namespace hawser::ops
