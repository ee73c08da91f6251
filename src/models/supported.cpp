#include "models/supported.h"

#include <limits>
#include <set>

namespace hawser::models {
namespace {

// Kernels multiply caps and scales by log2(e), in float32. 0 is the default; not a number is neither.
bool is_factor(double value) {
  constexpr double kMin = std::numeric_limits<float>::min(), kMax = std::numeric_limits<float>::max() / 2.0;
  return value == 0 || (value >= kMin && value <= kMax);
}

class Check {
 public:
  Check(const std::string& file, Problems& problems) : file_(file), problems_(problems) {}

  void enter(std::string place) { place_ = std::move(place); }
  void no(bool found, const char* feature) {
    if (!found || !seen_.insert(feature).second) return;
    problems_.add({.file = file_, .what = "not supported yet", .got = feature, .at = place_});
  }
  void norm(const nn::NormConfig& config) {
    no(config.kind == nn::NormKind::layer && config.unit_offset, "a layer norm whose factor is 1 + weight");
    no(config.kind == nn::NormKind::rms && config.bias, "an RMS norm with a bias");
  }
  void norm(const nn::NormConfig& config, nn::NormPlace place, Residual residual) {
    norm(config);
    no(place == nn::NormPlace::post && residual != Residual::serial, "a norm of the sum of parallel layers");
  }

 private:
  const std::string& file_;
  Problems& problems_;
  std::string place_;
  std::set<std::string> seen_;
};

void check_block(Check& check, const BlockDescription& block) {
  const nn::AttentionConfig& attention = block.attention;
  check.norm(attention.norm_config, attention.norm_place, block.residual);
  if (attention.qk_norm) {
    check.norm(*attention.qk_norm);
    check.no(attention.qk_norm->kind == nn::NormKind::layer, "layer norms of queries and keys");
  }
  check.no(!is_factor(attention.softcap.value_or(0)),
           "soft-capping of attention scores with a cap that is negative or out of range");
  check.no(!is_factor(attention.scale.value_or(0)), "attention scores with a scale that is negative or out of range");
  check.no(attention.alibi && !is_factor(attention.alibi_scale),
           "biases of attention scores with a factor that is negative or out of range");
  check.no(!(attention.dropout >= 0 && attention.dropout < 1), "dropout of attention outside [0, 1)");
  if (block.moe) {
    check.norm(block.moe->norm_config);
    return;
  }
  check.norm(block.mlp.norm_config, block.mlp.norm_place, block.residual);
}

}  // namespace

void check_supported(const ModelDescription& d, const std::string& file, Problems& problems) {
  Check check(file, problems);
  check.enter("embedding");
  if (d.embedding.norm_config) check.norm(*d.embedding.norm_config);
  for (std::size_t b = 0; b < d.blocks.size(); ++b) {
    check.enter(cat("block ", b));
    check_block(check, d.blocks[b]);
  }
  check.enter("head");
  check.norm(d.head.norm_config);
  if (d.head.transform) {
    if (d.head.transform->norm_config) check.norm(*d.head.transform->norm_config);
    check.no(nn::is_gated(d.head.transform->activation), "the activation of the head");
  }
  // Hugging Face has a regression in place of one class.
  check.no(d.head.classifies() && d.head.classes < 2, "a classification of fewer than two classes");
  check.no(d.head.classifies() && d.head.tied, "a classification with the embedding's table");
  check.no(!is_factor(d.head.softcap.value_or(0)),
           "soft-capping of logits with a cap that is negative or out of range");
}

}  // namespace hawser::models
