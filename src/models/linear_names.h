// Linears by the names of their modules in a Hugging Face folder ("model.layers.0.mlp.down_proj"), and how a recipe
// selects them.
#pragma once

#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "models/model.h"

namespace hawser::models {

// An entry of a recipe: the name of a module, or its end after a dot ("down_proj"); or, if it has a character that
// names do not have, a regular expression (ECMAScript) that matches whole names.
struct ModuleName {
  std::string text;
  std::optional<std::regex> pattern = std::nullopt;

  bool matches(const std::string& module) const;
};
// nullopt: a regular expression with a mistake.
std::optional<ModuleName> module_name_of(const std::string& text);

// The module of the tensor "MODULE.weight" or "MODULE.bias".
std::string module_of(const std::string& tensor);
// The last parts of the names, each once; and joined with ", ".
std::vector<std::string> last_parts(const std::vector<std::string>& names);
std::string joined(const std::vector<std::string>& words);

// The modules of all tensors of the model, in the order of its flats.
std::vector<std::string> modules_of(const Model& model);
// Those of the Linear that a parameter is a weight of (nn::Param::modules), with all experts.
std::vector<std::string> linear_modules(const nn::Param& param);
// Those of the Linears whose operands may be quantized (nn::Param::of_linear), in the same order.
std::vector<std::string> quantizable_linears(const Model& model);
// Those that are the Linear at this site of a layer: {"model.layers.0.self_attn.q_proj", ..., "...v_proj"} of a fused
// one. They are equal on all ranks of a layer. A layer without a Linear there has none.
std::vector<std::string> modules_at(const Model& model, int layer, nn::Site site);

}  // namespace hawser::models
