// RoPE in a config.json, as transformers 4 (rope_theta, rope_scaling) and 5 (rope_parameters) spell it. If a file has
// both, rope_scaling takes precedence, and a theta inside of it over the one outside, as in transformers.
// Source: transformers 4.57 and 5.23, modeling_rope_utils.py.
#pragma once

#include <cstdint>

#include "io/json.h"
#include "models/config_reader.h"
#include "ops/rope/rope.h"

namespace hawser::models {

// What a family takes for keys that are absent.
struct RopeDefaults {
  double theta = 10000.0;
  const char* theta_key = "rope_theta";  // the key outside of rope_scaling and rope_parameters
  // The part of a head that is rotated: the key outside, and its default. Without a key, all of it.
  const char* partial_key = nullptr;
  double partial = 1.0;
  std::int64_t max_position = 0;  // yarn: original_max_position_embeddings
};

// The RoPE of all layers, for heads of `head_dim`. RopeConfig::head_dim is the number of dims that are rotated.
ops::RopeConfig read_rope(ConfigReader& config, std::int64_t head_dim, const RopeDefaults& defaults);

// The fields of one RoPE: `fields` is the object rope_scaling or rope_parameters, or one of those inside. `top`, if not
// null, has original_max_position_embeddings with precedence.
ops::RopeConfig read_rope_fields(ConfigReader& fields, ConfigReader* top, std::int64_t head_dim,
                                 const RopeDefaults& defaults);

// Whether the object has one set of RoPE parameters for each kind of layer.
bool is_nested_rope(const ConfigReader& rope);

// The value of rope_scaling: null for the default kind.
io::OrderedJson rope_scaling_json(const ops::RopeConfig& rope);

}  // namespace hawser::models
