// Experts in a config.json: Mixtral's and Qwen3-MoE's keys.
// Source: transformers 5.23, configuration_mixtral.py, configuration_qwen3_moe.py.
#pragma once

#include <cstdint>
#include <string>

#include "io/json.h"
#include "models/config_reader.h"
#include "models/model.h"
#include "models/sizes.h"

namespace hawser::models {

// What a family takes for keys that are absent.
struct ExpertDefaults {
  std::int64_t experts = 0, top_k = 0;
  double auxiliary_loss = 0.001;
};

// The experts of a block as the family's keys say: num_experts or num_local_experts, num_experts_per_tok,
// router_aux_loss_coef, output_router_logits. `inner` is an expert's size. Without names.
nn::MoeConfig read_experts(ConfigReader& config, const Sizes& sizes, std::int64_t inner,
                           const ExpertDefaults& defaults);

// Replaces the MLP of a block by these experts, with the MLP's norm.
void set_experts(BlockDescription& block, nn::MoeConfig experts, const std::string& router, const std::string& gate,
                 const std::string& up, const std::string& down);

// The experts of the first block that has some; null if none has.
const nn::MoeConfig* experts_of(const ModelDescription& description);

}  // namespace hawser::models
