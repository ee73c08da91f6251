#include "nn/quantizer.h"

#include <iterator>

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

namespace {

// Names in checkpoints: not to be changed.
constexpr const char* kOperandNames[] = {"x", "dy"};
static_assert(std::size(kOperandNames) == static_cast<std::size_t>(Operand::dy) + 1);
constexpr const char* kSiteNames[] = {"qkv_projection", "output_projection",      "up_projection", "down_projection",
                                      "logits",         "attention_probabilities"};
static_assert(std::size(kSiteNames) == static_cast<std::size_t>(Site::attention_probabilities) + 1);

}  // namespace

const char* to_string(Operand operand) {
  return kOperandNames[static_cast<std::size_t>(operand)];
}

const char* to_string(Site site) {
  return kSiteNames[static_cast<std::size_t>(site)];
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

}  // namespace hawser::nn
