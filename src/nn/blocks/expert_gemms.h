// `ExpertGemms`: the grouped GEMMs of a mixture's experts on one routing, and the quantization of what they read.
// Internal to MoeLayer.
//
// A Site has the scales of all experts' rows together; each expert's weight has its own (Param::matrices). Rows of
// experts are quantized where the GEMMs run, piece by piece, or with TokenExchange::Options::quantized_rows before they
// are sent, with the same bits: then the amax is that of all tokens, and saturated elements are counted once for each
// token. Padding is zeros, which add nothing to an amax; rows after the last group are undefined, and are not read.
#pragma once

#include <optional>

#include "nn/blocks/linear.h"

namespace hawser::nn {

class ExpertGemms {
 public:
  ExpertGemms(LayerContext& ctx, const TokenExchange::Routing& routing) : ctx_(ctx), routing_(routing) {}

  // The rows of a piece as `reader` reads them: quantized, if the site has a format.
  Scaled quantized(int piece, Site site, Operand operand, const TensorView& rows, Linear::ReadBy reader) const;
  // A matrix of tokens [T, C] as it is dispatched to experts that read it as `operand`: quantized if the exchange takes
  // such rows and all ranks have its scale, otherwise as it is.
  Scaled sent(Site site, Operand operand, const TensorView& tokens, Linear::ReadBy reader) const;
  // quantized() of the rows of a piece of what sent() returned.
  Scaled arrived(int piece, Site site, Operand operand, const Scaled& sent, const TensorView& rows,
                 Linear::ReadBy reader) const;
  // Where an op writes what quantized() returns, in place of the rows of this shape, if it can.
  std::optional<ops::Fp8Output> output(int piece, Site site, Operand operand, const Shape& rows,
                                       Linear::ReadBy reader) const;
  // y = x W^T of each expert of a piece; W: its matrix of the parameter. `backward`: y = x W.
  void multiply(int piece, int param, const Scaled& x, const TensorView& y, bool backward) const;
  // gradient [L, outputs, inputs] of all local experts: dW (+)= dy^T x for the experts of a piece.
  void weight_gradient(int piece, const Scaled& dy, const Scaled& x, const TensorView& gradient, bool accumulate) const;

 private:
  Quantization quantization(int piece, Site site, Operand operand, Linear::ReadBy reader) const;
  // The piece's experts of a parameter, `matrices` [L, rows of one, columns], in the dtype of the rows that they
  // multiply.
  Scaled weights(int piece, const TensorView& matrices, const Scaled& parameter, DType rows) const;
  double flops(std::int64_t elements) const;  // of a GEMM of one piece, with matrices of `elements` elements

  LayerContext& ctx_;
  const TokenExchange::Routing& routing_;
};

// A parameter of the local experts, or its gradient, as [L, rows of one, columns].
inline TensorView by_expert(const TensorView& view, std::int64_t experts) {
  return view.reshape({experts, view.size(0) / experts, view.size(1)});
}

}  // namespace hawser::nn
