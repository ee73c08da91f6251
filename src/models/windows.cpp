#include "models/windows.h"

#include <algorithm>

#include "models/sizes.h"

namespace hawser::models {
namespace {
constexpr const char* kSliding = "sliding_attention";
constexpr const char* kFull = "full_attention";
}  // namespace

std::int64_t read_window(ConfigReader& config, std::int64_t absent) {
  if (config.is_null("sliding_window")) return 0;
  if (!config.has("sliding_window")) return absent;
  return config.integer("sliding_window", 1, kMaxPosition);
}

std::vector<bool> read_layer_types(ConfigReader& config, std::int64_t layers, std::int64_t window,
                                   const std::function<bool(std::int64_t)>& derived) {
  std::vector<bool> sliding;
  const Json* types = config.find("layer_types");
  if (types == nullptr) {
    for (std::int64_t layer = 0; layer < layers; ++layer) sliding.push_back(derived(layer));
  } else {
    const std::string expected = cat("a list of ", kFull, " and ", kSliding, ", one for each of ", layers, " layers");
    if (!types->is_array() || static_cast<std::int64_t>(types->size()) != layers) {
      config.reject("layer_types", "invalid value", expected,
                    types->is_array() ? cat("a list of ", types->size()) : shown(*types));
      return std::vector<bool>(static_cast<std::size_t>(layers));
    }
    for (const Json& type : *types) {
      if (type != kFull && type != kSliding) {
        config.reject("layer_types", "not supported", expected, shown(type));
        return std::vector<bool>(static_cast<std::size_t>(layers));
      }
      sliding.push_back(type == kSliding);
    }
  }
  if (window == 0 && std::ranges::find(sliding, true) != sliding.end()) {
    config.reject("sliding_window", "sliding layers without a window", "a whole number above 0", "none");
  }
  return sliding;
}

void set_uniform_window(ConfigReader& config, std::int64_t window, ModelDescription& d) {
  const char* kind = window > 0 ? kSliding : kFull;
  if (const Json* types = config.find("layer_types")) {
    const bool same = types->is_array() && std::ranges::all_of(*types, [&](const Json& type) { return type == kind; });
    if (!same) config.reject("layer_types", "not supported", cat(kind, " in all layers"), "others");
  }
  for (BlockDescription& block : d.blocks) block.attention.window = window;
}

void set_windows(ModelDescription& d, const std::vector<bool>& sliding, std::int64_t window) {
  for (std::size_t b = 0; b < d.blocks.size(); ++b) d.blocks[b].attention.window = sliding[b] ? window : 0;
}

std::int64_t window_of(const ModelDescription& d) {
  std::int64_t window = 0;
  for (const BlockDescription& block : d.blocks) window = std::max(window, block.attention.window);
  return window;
}

io::OrderedJson window_json(const ModelDescription& d) {
  const std::int64_t window = window_of(d);
  return window > 0 ? io::OrderedJson(window) : io::OrderedJson(nullptr);
}

io::OrderedJson layer_types_json(const ModelDescription& d) {
  io::OrderedJson types = io::OrderedJson::array();
  for (const BlockDescription& block : d.blocks) types.push_back(block.attention.window > 0 ? kSliding : kFull);
  return types;
}

}  // namespace hawser::models
