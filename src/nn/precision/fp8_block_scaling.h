// `Fp8BlockScaling`: the quantizer of FP8 training with a scale for each block (nn/quantizer.h,
// LinearFormat::fp8_block). x, dy and weights are rounded to E4M3. Scales follow from the rounded matrix itself
// (ops/quantize/quantize_blocks.h):
//   x, dy     for each 128 elements along the dimension that a GEMM sums over: those of a row for y and dx; those of a
//             column, 128 tokens, for dW, which reads x and dy transposed, scaled and quantized separately
//   weights   for each 128 x 128 elements, so that W and its transpose have the same values
// There is no history, no step that only records, and no collective. Rows that are padding (BatchViews::token_mask)
// have no part in an amax.
// Weights have no scales in their flats (FlatSpec::quantized_on_use): ranks gather them in the compute dtype, since a
// shard may begin and end inside of a block, and each GEMM that reads one rounds it first, into a temporary.
// Errors: InternalError for rows of experts, and for weights with scales.
// Sources: DeepSeek-V3 (arXiv 2412.19437); Transformer Engine's Float8BlockScaling.
#pragma once

#include "nn/quantizer.h"
#include "ops/quantize/quantize_blocks.h"

namespace hawser::nn {

struct Fp8BlockOptions {
  int margin = 0;            // the scales are 2^margin times what would just avoid saturation
  bool power_of_two = true;  // scales are rounded up to powers of two
};

class Fp8BlockScaling : public Quantizer {
 public:
  explicit Fp8BlockScaling(const Fp8BlockOptions& options) : options_(options) {}

  std::int64_t history() const override { return 1; }
  Scaled quantize(LayerContext&, const Quantization&, const TensorView& matrix) const override;
  Scaled quantize_weight(LayerContext&, const Scaled& weight, bool transposed) const override;
  void record(LayerContext&, const Quantization&, const TensorView&) const override {}
  void update_scales(Stream&, const SiteScales&) const override;
  void measure(Stream&, const FlatValues& piece, const TensorView& amax) const override;
  void weight_scales(Stream&, const Flat& flat, const TensorView& amax, const TensorView& scales) const override;
  void quantize_weights(Stream&, const FlatValues& piece, const TensorView& scales, const TensorView& q) const override;

 private:
  ops::ScaleRule rule() const { return {options_.margin, options_.power_of_two}; }

  Fp8BlockOptions options_;
};

}  // namespace hawser::nn
