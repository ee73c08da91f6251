#include "models/sizes.h"

namespace hawser::models {

namespace {
constexpr double kMaxParameters = 0x1p48;
}

void check_total(ConfigReader& config, const Sizes& s, std::int64_t experts, std::int64_t inner) {
  const double width = static_cast<double>(s.width);
  const double attention = 2.0 * static_cast<double>(s.heads + s.kv_heads) * static_cast<double>(s.head_dim) * width;
  const double mlp = 3.0 * static_cast<double>(inner) * width * static_cast<double>(experts);
  const double all =
      2.0 * static_cast<double>(s.vocabulary) * width + static_cast<double>(s.layers) * (attention + mlp);
  if (all > kMaxParameters) {
    config.reject("num_hidden_layers", "too many parameters", cat("at most ", kMaxParameters), cat(all));
  }
}

Sizes read_sizes(ConfigReader& config, Problems& problems, const SizeDefaults& defaults) {
  const std::size_t before = problems.size();
  Sizes s;
  s.vocabulary = config.integer("vocab_size", 1, kMaxVocabulary);
  s.width = config.integer("hidden_size", 1, kMaxWidth);
  s.inner = config.integer("intermediate_size", 1, kMaxInner);
  s.layers = config.integer("num_hidden_layers", 1, kMaxLayers);
  s.heads = config.integer("num_attention_heads", 1, kMaxHeads);
  const std::int64_t kv_heads = config.is_null("num_key_value_heads") ? s.heads : defaults.kv_heads.value_or(s.heads);
  s.kv_heads = config.integer("num_key_value_heads", 1, kMaxHeads, kv_heads);
  s.head_dim = config.integer("head_dim", 1, kMaxHeadDim, defaults.head_dim.value_or(s.width / s.heads));
  if (problems.size() > before) return s;
  if (s.heads % s.kv_heads != 0) {
    config.reject("num_key_value_heads", "heads do not divide", cat("a divisor of num_attention_heads ", s.heads),
                  cat(s.kv_heads));
  }
  const bool given = config.has("head_dim") || defaults.head_dim.has_value();
  const char* decides = given ? "head_dim" : "num_attention_heads";
  if (!given && s.width % s.heads != 0) {
    config.reject(decides, "heads do not divide", cat("a divisor of hidden_size ", s.width), cat(s.heads),
                  "head_dim: the size of one head");
  } else if (s.head_dim % 2 != 0 || s.head_dim > kMaxHeadDim) {
    config.reject(decides, "invalid head size", cat("an even number up to ", kMaxHeadDim, ": RoPE rotates pairs"),
                  cat(s.head_dim));
  }
  check_total(config, s, 1, s.inner);
  return s;
}

}  // namespace hawser::models
