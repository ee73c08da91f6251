// LoRA (arXiv 2106.09685) on a model: which Linears have adapters, and which other parameters train with them, chosen
// as PEFT's LoraConfig chooses modules. What an adapter computes: nn::Adapter (nn/blocks/linear.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "models/model.h"

namespace hawser::models {

constexpr const char* kAllLinear = "all-linear";

struct LoraConfig {
  std::int64_t rank = 16;  // PEFT: r
  double alpha = 32;       // the factor of B A is alpha / rank
  double dropout = 0;      // of the adapters' input, in training
  bool rslora = false;     // alpha / sqrt(rank) instead (arXiv 2312.03732)
  bool dora = false;       // a magnitude for each row of W (arXiv 2402.09353)
  // Each is kAllLinear, the name of a Linear or its end after a dot ("q_proj"), or, if it has a character that names do
  // not have, a regular expression (ECMAScript) that matches whole names. Linears of experts, and of MLPs beside them,
  // have no adapters, nor have routers, embedding and head; kAllLinear is all others.
  std::vector<std::string> targets = {kAllLinear};
  // Modules that train in full beside the adapters, by name or its end: "lm_head", "norm".
  std::vector<std::string> modules_to_save = {};
  std::string name = {};  // nn::AdapterConfig::name

  double scale() const;
  bool operator==(const LoraConfig&) const = default;
};

// The names, without ".weight", of the Linears that can have adapters, in the order of the blocks.
std::vector<std::string> adaptable_linears(const ModelDescription& description);

// `text` as a target that is a regular expression even if it has the characters of a name only; and the inverse, which
// leaves other targets as they are.
std::string pattern_target(const std::string& text);
std::string text_of_target(const std::string& target);

// Where messages place what is wrong: the file and the key of each (Problem::file and at).
struct LoraPlace {
  Problem targets, modules_to_save;
};
// The keys of a run's recipe that a checkpoint in `folder` has stored.
LoraPlace stored_place(const std::string& folder);

// Adds the adapters to `description`. Adds a problem for each target and each module that the model does not have or
// cannot have adapted or trained.
void add_lora(ModelDescription& description, const LoraConfig& lora, const LoraPlace& place, Problems& problems);

// `spec_of`, which decides without adapters, with all parameters frozen but those of adapters and of these modules;
// domains, dtypes and groups stay as they are. add_lora has checked the modules.
nn::FlatSpecOf train_lora(nn::FlatSpecOf spec_of, std::vector<std::string> modules_to_save);

// Whether a tensor is an adapter's: A, B or a magnitude.
bool is_lora_tensor(const std::string& name);

}  // namespace hawser::models
