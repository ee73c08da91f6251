// `Fp8Scaling`: the quantizer of FP8 training (nn/quantizer.h). x and weights are rounded to E4M3, dy to E5M2, with one
// scale for each matrix, or for each weight:
//   delayed   of x and dy: from the amaxes of earlier steps, `history` of them (ops::delayed_scales). If the
//             Quantization has no scale, as `current`
//   current   of x and dy: from the amax of the matrix itself, of this rank's rows
//   weights   from the amax of the weight after each update
// If more than Fp8Options::saturation_limit of the elements of one x or dy are beyond the range of a delayed scale, the
// step is skipped, and runs again with scales that follow from its amaxes, too (ops/quantize/saturation.h).
// Rows that are padding (BatchViews::token_mask) have no matrix in an amax, and are rounded like the others.
// A scale is amax * 2^margin / 448 (E4M3) or / 57344 (E5M2), in float32.
// Errors: InternalError for LinearFormat::fp8_block.
// Sources: arXiv 2209.05433; the recipes of Transformer Engine and torchao.
#pragma once

#include "nn/quantizer.h"
#include "ops/quantize/quantize.h"

namespace hawser::nn {

struct Fp8Options {
  std::int64_t history = 16;   // amaxes of each operand that are kept, at least 1
  bool most_recent = false;    // the newest amax counts alone, not the largest of the history
  int margin = 0;              // the scales are 2^margin times what would just avoid saturation
  bool power_of_two = false;   // scales are rounded up to powers of two
  float saturation_limit = 1;  // a share of a matrix's elements; 1: no step runs again
  int max_replays = 3;         // of one step; then it counts as it is
};

class Fp8Scaling : public Quantizer {
 public:
  explicit Fp8Scaling(const Fp8Options& options) : options_(options) {}

  const Fp8Options& options() const { return options_; }
  std::int64_t history() const override { return options_.history; }
  bool calibrates() const override { return true; }
  Scaled quantize(LayerContext&, const Quantization&, const TensorView& matrix) const override;
  std::optional<ops::Fp8Output> output(LayerContext&, const Quantization&, const Shape& shape) const override;
  void record(LayerContext&, const Quantization&, const TensorView& matrix) const override;
  void judge(Stream&, const JudgedStep&) const override;
  void update_scales(Stream&, const SiteScales&) const override;
  void measure(Stream&, const FlatValues& piece, const TensorView& amax) const override;
  std::vector<ops::EqualMatrices> measured_matrices(const Flat& flat, std::int64_t begin) const override;
  void weight_scales(Stream&, const Flat& flat, const TensorView& amax, const TensorView& scales) const override;
  void quantize_weights(Stream&, const FlatValues& piece, const TensorView& scales, const TensorView& q) const override;

 private:
  ops::Fp8Output make_output(LayerContext&, const Quantization&, const Shape& shape, const TensorView& scale) const;
  ops::ScaleRule rule() const { return {options_.margin, options_.power_of_two}; }

  Fp8Options options_;
};

}  // namespace hawser::nn
