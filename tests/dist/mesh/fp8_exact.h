// The exact layers (exact_layers.h) in FP8: scales are powers of two, so that all sums are exact.
#pragma once

#include "exact_layers.h"
#include "nn/precision/fp8_scaling.h"

namespace hawser::testing {

constexpr int kFp8Steps = 6;
constexpr nn::Fp8Options kExactFp8{.history = 4, .power_of_two = true};

inline std::int64_t whole_batch() {
  return 2LL * the_world->size();
}

inline models::Model fp8_model(bool frozen_up = false) {
  return exact_model(true, true, true, true, frozen_up);
}

inline plan::Layout fp8_layout(const models::Model& model, const comm::MeshSizes& mesh) {
  plan::Layout layout = exact_layout(model, mesh);
  layout.quantizer = std::make_shared<nn::Fp8Scaling>(kExactFp8);
  return layout;
}

inline Tensors without_head(Tensors all) {
  std::erase_if(all, [](const auto& entry) { return entry.first.find("lm_head") != std::string::npos; });
  return all;
}

}  // namespace hawser::testing
