#include "models/rope_keys.h"

#include "models/sizes.h"

namespace hawser::models {
namespace {

void read_llama3(ConfigReader& fields, ConfigReader& original, ops::RopeConfig& rope) {
  rope.kind = ops::RopeKind::llama3;
  rope.factor = fields.number("factor", 1.0);
  rope.low_freq_factor = fields.positive("low_freq_factor");
  rope.high_freq_factor = fields.positive("high_freq_factor");
  if (rope.low_freq_factor >= rope.high_freq_factor && fields.has("low_freq_factor") &&
      fields.has("high_freq_factor")) {
    fields.reject("high_freq_factor", "invalid value", cat("more than low_freq_factor ", rope.low_freq_factor),
                  cat(rope.high_freq_factor));
  }
  rope.original_max_position = original.integer("original_max_position_embeddings", 1, kMaxPosition);
}

void read_yarn(ConfigReader& fields, ConfigReader& original, std::int64_t max_position, ops::RopeConfig& rope) {
  rope.kind = ops::RopeKind::yarn;
  rope.original_max_position = original.integer("original_max_position_embeddings", 1, kMaxPosition, max_position);
  if (fields.is_null("factor")) {
    rope.factor = static_cast<double>(max_position) / static_cast<double>(rope.original_max_position);
  } else {
    rope.factor = fields.number("factor", 1.0);
  }
  // transformers takes 0 for absent in these four.
  rope.beta_fast = fields.number("beta_fast", 0.0, 32.0);
  if (rope.beta_fast == 0) rope.beta_fast = 32.0;
  rope.beta_slow = fields.number("beta_slow", 0.0, 1.0);
  if (rope.beta_slow == 0) rope.beta_slow = 1.0;
  rope.mscale = fields.number("mscale", 0.0, 0.0);
  rope.mscale_all_dim = fields.number("mscale_all_dim", 0.0, 0.0);
  if (fields.has("attention_factor")) rope.attention_factor = fields.positive("attention_factor");
  rope.truncate = fields.flag("truncate", true);
  if (rope.theta <= 1) {
    fields.reject("rope_theta", "invalid value", "a base above 1 with yarn", cat(rope.theta));
  }
}

}  // namespace

bool is_nested_rope(const ConfigReader& rope) {
  for (const auto& [key, value] : rope.json().items()) {
    if (value.is_object()) return true;
  }
  return false;
}

ops::RopeConfig read_rope_fields(ConfigReader& fields, ConfigReader* top, std::int64_t head_dim,
                                 const RopeDefaults& defaults) {
  ops::RopeConfig rope{.head_dim = head_dim};
  rope.theta = fields.positive("rope_theta", defaults.theta);
  if (defaults.partial_key == nullptr) {
    fields.only("partial_rotary_factor", 1.0);
  } else {
    const double part = fields.positive("partial_rotary_factor", defaults.partial);
    rope.head_dim = static_cast<std::int64_t>(static_cast<double>(head_dim) * part);
    if (head_dim > 1 && (part > 1 || rope.head_dim < 2 || rope.head_dim % 2 != 0)) {  // else it has been rejected
      const bool own = fields.has("partial_rotary_factor");
      ConfigReader& where = !own && top != nullptr ? *top : fields;
      where.reject(own ? "partial_rotary_factor" : defaults.partial_key, "invalid value",
                   cat("a part of ", head_dim, " dims that is an even number"), cat(part));
    }
  }
  // `type` is the name before transformers 4.43; rope_type takes precedence.
  const char* name = fields.has("rope_type") || !fields.has("type") ? "rope_type" : "type";
  const std::string kind = fields.choice(name, {"default", "linear", "llama3", "yarn"}, "default");
  const char* original = "original_max_position_embeddings";
  ConfigReader& where = top != nullptr && top->has(original) ? *top : fields;
  if (kind == "linear") {
    rope.kind = ops::RopeKind::linear;
    rope.factor = fields.number("factor", 1.0);
  } else if (kind == "llama3") {
    read_llama3(fields, where, rope);
  } else if (kind == "yarn") {
    read_yarn(fields, where, defaults.max_position, rope);
  }
  return rope;
}

ops::RopeConfig read_rope(ConfigReader& config, std::int64_t head_dim, const RopeDefaults& defaults) {
  RopeDefaults outer = defaults;
  outer.theta = config.positive(defaults.theta_key, defaults.theta);
  if (defaults.partial_key != nullptr) outer.partial = config.positive(defaults.partial_key, defaults.partial);
  const Json* scaling = config.find("rope_scaling");
  const bool classic = scaling != nullptr && !(scaling->is_object() && scaling->empty());
  const char* key = classic ? "rope_scaling" : "rope_parameters";
  auto fields = config.object(key);
  if (fields && is_nested_rope(*fields)) {
    config.reject(key, "not supported", "one set of RoPE parameters", "one for each kind of layer");
    return {.head_dim = head_dim};
  }
  static const Json kNone = Json::object();
  if (!fields) fields.emplace(config.of(kNone));
  return read_rope_fields(*fields, &config, head_dim, outer);
}

io::OrderedJson rope_scaling_json(const ops::RopeConfig& rope) {
  switch (rope.kind) {
    case ops::RopeKind::standard:
      return nullptr;
    case ops::RopeKind::linear:
      // Both names: transformers before 4.43 reads only `type`.
      return {{"rope_type", "linear"}, {"type", "linear"}, {"factor", rope.factor}};
    case ops::RopeKind::llama3:
      return {{"rope_type", "llama3"},
              {"factor", rope.factor},
              {"low_freq_factor", rope.low_freq_factor},
              {"high_freq_factor", rope.high_freq_factor},
              {"original_max_position_embeddings", rope.original_max_position}};
    case ops::RopeKind::yarn:
      break;
  }
  io::OrderedJson out = {{"rope_type", "yarn"},
                         {"factor", rope.factor},
                         {"original_max_position_embeddings", rope.original_max_position},
                         {"beta_fast", rope.beta_fast},
                         {"beta_slow", rope.beta_slow}};
  if (rope.attention_factor > 0) out["attention_factor"] = rope.attention_factor;
  if (rope.mscale > 0) out["mscale"] = rope.mscale;
  if (rope.mscale_all_dim > 0) out["mscale_all_dim"] = rope.mscale_all_dim;
  if (!rope.truncate) out["truncate"] = false;
  return out;
}

}  // namespace hawser::models
