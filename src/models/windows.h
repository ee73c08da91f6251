// Sliding windows in a config.json: sliding_window, and layer_types or what transformers derives them from.
// A window counts the query's own key, as nn::AttentionConfig::window does.
// Source: transformers 5.23, configuration_mistral.py, configuration_qwen2.py, configuration_gemma3.py,
// masking_utils.py.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "io/json.h"
#include "models/config_reader.h"
#include "models/model.h"

namespace hawser::models {

// sliding_window: 0 for null, `absent` if the key is absent.
std::int64_t read_window(ConfigReader& config, std::int64_t absent);

// By layer, whether it is a "sliding_attention" one: layer_types, or if it is absent, `derived`. Rejects layer_types of
// another length, and sliding layers without a window.
std::vector<bool> read_layer_types(ConfigReader& config, std::int64_t layers, std::int64_t window,
                                   const std::function<bool(std::int64_t)>& derived);

// Gives all layers the window, in a family that has no others; rejects layer_types that say otherwise.
void set_uniform_window(ConfigReader& config, std::int64_t window, ModelDescription& description);

// Gives sliding layers the window.
void set_windows(ModelDescription& description, const std::vector<bool>& sliding, std::int64_t window);

// The largest window of a description. It is 0 if no layer has one.
std::int64_t window_of(const ModelDescription& description);

// The value of sliding_window, and of layer_types.
io::OrderedJson window_json(const ModelDescription& description);
io::OrderedJson layer_types_json(const ModelDescription& description);

}  // namespace hawser::models
