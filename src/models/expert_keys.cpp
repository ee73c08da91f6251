#include "models/expert_keys.h"

namespace hawser::models {

nn::MoeConfig read_experts(ConfigReader& config, const Sizes& sizes, std::int64_t inner,
                           const ExpertDefaults& defaults) {
  nn::MoeConfig moe{.width = sizes.width, .inner = inner};
  // Two names of one number: transformers 5 maps one to the other.
  const bool local = config.has("num_local_experts");
  moe.experts = config.integer(local ? "num_local_experts" : "num_experts", 1, kMaxExperts, defaults.experts);
  if (local && config.has("num_experts")) {
    const std::int64_t other = config.integer("num_experts", 1, kMaxExperts);
    if (other != moe.experts) {
      config.reject("num_experts", "invalid value", cat("as many as num_local_experts, ", moe.experts), cat(other));
    }
  }
  moe.top_k = config.integer("num_experts_per_tok", 1, moe.experts, defaults.top_k);
  if (moe.top_k > moe.experts) {
    config.reject("num_experts_per_tok", "missing key", cat("a whole number from 1 to ", moe.experts), "");
  }
  moe.auxiliary_loss = config.number("router_aux_loss_coef", 0.0, defaults.auxiliary_loss);
  moe.reported = config.flag("output_router_logits", false);
  check_total(config, sizes, moe.experts, inner);
  return moe;
}

void set_experts(BlockDescription& block, nn::MoeConfig experts, const std::string& router, const std::string& gate,
                 const std::string& up, const std::string& down) {
  experts.norm_config = block.mlp.norm_config;
  experts.initial_std = block.mlp.initial_std;
  experts.output_std = block.mlp.output_std;
  experts.norm = block.mlp.norm;
  experts.router = router;
  experts.gate = gate;
  experts.up = up;
  experts.down = down;
  block.moe = std::move(experts);
}

const nn::MoeConfig* experts_of(const ModelDescription& d) {
  for (const BlockDescription& block : d.blocks) {
    if (block.moe) return &*block.moe;
  }
  return nullptr;
}

}  // namespace hawser::models
