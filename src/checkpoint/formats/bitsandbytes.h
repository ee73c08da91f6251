// `QuantizedTensor`: a tensor of safetensors files that bitsandbytes has quantized to NF4.
//
// Example: model.layers.0.mlp.up_proj.weight [14336, 4096] is five tensors, as transformers saves them with double
// quantization:
//
//   NAME                                U8 [29360128, 1]   codes, two in a byte (tensor/nf4.h)
//   NAME.absmax                         U8 [917504]        codes of the blocks' scales
//   NAME.nested_absmax                  F32 [3584]         scales of the groups
//   NAME.nested_quant_map               F32 [256]          the values of codes of scales
//   NAME.quant_map                      F32 [16]           the levels
//   NAME.quant_state.bitsandbytes__nf4  U8                 JSON: shape, sizes of blocks and groups, mean of the scales
//
// Without double quantization absmax is F32 [917504], the scales, and there is no nested tensor. To its readers a
// SafetensorsFolder has one tensor NAME with the shape of the weight, which is read dequantized.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "tensor/nf4.h"
#include "tensor/tensor.h"

namespace hawser::checkpoint {

struct QuantizedTensor {
  Shape shape;
  // With double quantization: the mean of all scales.
  std::optional<float> mean = {};

  std::int64_t blocks() const { return shape.elements() / kNf4Block; }
};

// The end of the name of the tensor with the JSON text.
inline constexpr const char* kQuantState = ".quant_state.bitsandbytes__";

// What the JSON text says; nullopt, and a problem, if it is of another format (FP4), or of other sizes of blocks and
// groups than 64 and 256. `place`: of the problem.
std::optional<QuantizedTensor> parse_quant_state(const std::string& format, const std::string& json,
                                                 const Problem& place, Problems& problems);

// The names of the tensors that belong to `name`, besides the codes and the JSON text.
struct QuantizedNames {
  explicit QuantizedNames(const std::string& name)
      : scales(name + ".absmax"),
        levels(name + ".quant_map"),
        group_scales(name + ".nested_absmax"),
        map(name + ".nested_quant_map") {}
  std::string scales, levels, group_scales, map;
};

// Elements [first, first + count) of the tensor to `out`. `codes`: the bytes from that of element `first` on; `scales`:
// of all blocks.
void dequantize_to(const std::byte* codes, const std::vector<float>& scales, std::int64_t first, std::int64_t count,
                   float* out);

}  // namespace hawser::checkpoint
