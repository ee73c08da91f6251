#include "nn/quantizer.h"

#include "nn/layer.h"

namespace hawser::nn {

void Quantizer::record(LayerContext&, const Quantization&, const TensorView&) const {
  HAWSER_CHECK(false, "this quantizer does not calibrate");
}

std::optional<ops::Fp8Output> Quantizer::output(LayerContext&, const Quantization&, const Shape&) const {
  return {};
}

Scaled Quantizer::quantize_weight(LayerContext&, const Scaled& weight, bool) const {
  return weight;
}

const char* to_string(Operand operand) {
  switch (operand) {
    case Operand::x:
      return "x";
    case Operand::dy:
      return "dy";
  }
  return "?";
}

const char* to_string(Refusal refusal) {
  switch (refusal) {
    case Refusal::none:
      return "none";
    case Refusal::expert_rows:
      return "more rows for a rank's experts than their bound";
  }
  return "?";
}

const char* to_string(Site site) {
  switch (site) {
    case Site::qkv_projection:
      return "qkv_projection";
    case Site::output_projection:
      return "output_projection";
    case Site::up_projection:
      return "up_projection";
    case Site::down_projection:
      return "down_projection";
    case Site::logits:
      return "logits";
    case Site::attention_probabilities:
      return "attention_probabilities";
  }
  return "?";
}

}  // namespace hawser::nn
