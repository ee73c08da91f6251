#include "checkpoint/formats/bitsandbytes.h"

#include <nlohmann/json.hpp>

#include "checkpoint/shape_json.h"
#include "io/json.h"

namespace hawser::checkpoint {

std::optional<QuantizedTensor> parse_quant_state(const std::string& format, const std::string& json,
                                                 const Problem& place, Problems& problems) {
  const auto reject = [&](const std::string& what, const std::string& expected, const std::string& got) {
    problems.add({.file = place.file, .what = what, .expected = expected, .got = got, .at = place.at});
    return std::optional<QuantizedTensor>();
  };
  const nlohmann::json state = io::json_or_null(json);
  const std::optional<Shape> shape = as_shape(state.is_object() ? state.value("shape", nlohmann::json()) : state);
  const std::optional<std::int64_t> elements = shape ? checked_product(*shape, 1) : std::nullopt;
  if (!elements || shape->rank() == 0) return reject("a quant_state without a shape", "JSON text of bitsandbytes", "");
  const auto type = state.value("quant_type", nlohmann::json(format));
  if (format == "nf4" && type != "nf4")
    return reject("weights are quantized to a format that is not supported", "nf4", type.dump());
  if (format != "nf4") return reject("weights are quantized to a format that is not supported", "nf4", format);
  const auto number = [&](const char* key) {
    const auto value = state.value(key, nlohmann::json());
    return value.is_number_integer() ? value.get<std::int64_t>() : 0;
  };
  if (number("blocksize") != kNf4Block) {
    return reject("blocks of another size", cat(kNf4Block), cat(number("blocksize")));
  }
  if (*elements % kNf4Block != 0) {
    return reject("a number of weights that blocks do not divide", cat("a multiple of ", kNf4Block), cat(*elements));
  }
  QuantizedTensor tensor{.shape = *shape};
  if (!state.contains("nested_blocksize")) return tensor;
  if (number("nested_blocksize") != kNf4GroupBlocks) {
    return reject("groups of another size", cat(kNf4GroupBlocks), cat(number("nested_blocksize")));
  }
  const auto offset = state.value("nested_offset", nlohmann::json());
  if (!offset.is_number()) return reject("a quant_state without nested_offset", "a number", offset.dump());
  tensor.mean = static_cast<float>(offset.get<double>());
  return tensor;
}

void dequantize_to(const std::byte* codes, const std::vector<float>& scales, std::int64_t first, std::int64_t count,
                   float* out) {
  const std::int64_t byte = first / 2;
  for (std::int64_t i = first; i < first + count; ++i) {
    const auto pair = static_cast<unsigned>(codes[i / 2 - byte]);
    const unsigned code = i % 2 == 0 ? pair >> 4 : pair & 15;
    *out++ = scales[static_cast<std::size_t>(i / kNf4Block)] * kNf4Values[code];
  }
}

}  // namespace hawser::checkpoint
