// `TensorAliases`: other names under which a file may have a weight of the model a second time.
//
//   module._orig_mod.model.layers.0.mlp.up_proj.weight    model.layers.0.mlp.up_proj.weight   (DDP, torch.compile)
//   layers.0.mlp.up_proj.weight                           model.layers.0.mlp.up_proj.weight   (without the head)
//   embed_out.weight, lm_head.weight                      the head, or the embedding that it is tied to
//   model.layers.0.self_attn.qkv_proj.weight              q_proj, k_proj and v_proj           (fused)
//   model.layers.0.mlp.experts.gate_up_proj               gate and up of each expert in turn  (fused)
//
// Files with both names are read by no rule: a program takes the first or the last. So both must have the same bytes
// (check_weights).
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "models/model.h"

namespace hawser::models {

class TensorAliases {
 public:
  // `known`: the names of the model's tensors.
  TensorAliases(const ModelDescription& description, const std::set<std::string>& known);

  // The model's tensors whose bytes, one after the other, the tensor `name` of a file should be; empty if it is no
  // alias. `name` itself is none of the model's.
  const std::vector<std::string>& tensors_of(const std::string& name) const;

  // A name without wrappers and without what may begin it.
  static std::string bare(const std::string& name);

 private:
  std::map<std::string, std::vector<std::string>> tensors_;  // by the name without wrappers and prefixes
};

}  // namespace hawser::models
