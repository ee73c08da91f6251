#include "models/supported.h"

#include <set>

namespace hawser::models {
namespace {

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
  void norm(const nn::NormConfig& config, nn::NormPlace place) {
    norm(config);
    no(place == nn::NormPlace::post, "a norm after the residual sum");
  }

 private:
  const std::string& file_;
  Problems& problems_;
  std::string place_;
  std::set<std::string> seen_;
};

void check_block(Check& check, const BlockDescription& block) {
  const nn::AttentionConfig& attention = block.attention;
  check.norm(attention.norm_config, attention.norm_place);
  if (attention.qk_norm) {
    check.norm(*attention.qk_norm);
    check.no(attention.qk_norm->kind == nn::NormKind::layer, "layer norms of queries and keys");
  }
  check.no(attention.softcap < 0, "soft-capping of attention scores with a negative cap");
  check.no(attention.scale < 0, "attention scores with a negative scale");
  if (block.moe) {
    check.norm(block.moe->norm_config);
    check.no(!nn::has_kernel(block.moe->activation), "the activation of the experts");
    return;
  }
  check.norm(block.mlp.norm_config, block.mlp.norm_place);
  check.no(!nn::has_kernel(block.mlp.activation), "the activation of the MLP");
}

}  // namespace

void check_supported(const ModelDescription& d, const std::string& file, Problems& problems) {
  Check check(file, problems);
  check.enter("embedding");
  check.no(!d.embedding.types.empty(), "embeddings of token types");
  check.no(d.embedding.norm_config.has_value(), "a norm of the embeddings");
  check.enter("RoPE");
  for (const ops::RopeConfig& rope : d.ropes) check.no(rope.interleaved, "interleaved rotation");
  for (std::size_t b = 0; b < d.blocks.size(); ++b) {
    check.enter(cat("block ", b));
    check_block(check, d.blocks[b]);
  }
  check.enter("head");
  check.norm(d.head.norm_config);
  check.no(d.head.kind == nn::HeadKind::masked_language_model, "a masked language model's head");
  check.no(d.head.kind == nn::HeadKind::sequence_classification, "classification of sequences");
  check.no(d.head.kind == nn::HeadKind::token_classification, "classification of tokens");
  check.no(d.head.kind == nn::HeadKind::span, "prediction of spans");
  check.no(d.head.softcap != 0, "soft-capping of logits");
  check.no(d.head.bias, "a bias of the head");
}

}  // namespace hawser::models
