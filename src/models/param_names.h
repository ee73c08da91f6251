// `ParamNames`: parameters that entries of a recipe select by their names in a Hugging Face folder (train.freeze,
// optimizer.groups).
//
//   const ParamNames names({"embed_tokens", ".*[.]layers[.][01]"});
//   names.find("model.embed_tokens.weight")              // 0
//   names.find("model.layers.1.self_attn.q_proj.weight") // 1
//   names.find("model.norm.weight")                      // nullopt
//
// An entry selects a parameter by its name, or by that of a module that contains it. It is the name or its end after a
// dot; or, if it has a character that names do not have, a regular expression (ECMAScript) that matches whole names.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "models/linear_names.h"
#include "models/model.h"

namespace hawser::models {

class ParamNames {
 public:
  // Entries that are no regular expression are left out: config/ reports them.
  explicit ParamNames(const std::vector<std::string>& entries);

  // The index of the first entry that selects this tensor.
  std::optional<int> find(const std::string& tensor) const;
  bool selects(int entry, const std::string& tensor) const;

 private:
  std::vector<std::optional<ModuleName>> entries_;
};

// A tensor of a model as its files name it, the parameter that has it, and whether that trains.
struct NamedParam {
  std::string tensor;
  const nn::Param* param = nullptr;
  bool trainable = true;
};
// All tensors; a tied head's is another name of the embedding's. The model outlives the result.
std::vector<NamedParam> named_params(const Model& model);

// Finds parameters that a choice by name divides: `of` gives a number for what is chosen for a tensor, which must be
// the same for all tensors that are one parameter (q_proj, k_proj and v_proj), and for the embedding and a tied head.
// Adds a problem for each kind of parameter that is divided, and one for the tied pair. `problem`: the place, and the
// `what` of the first kind.
void check_undivided(const Model& model, const std::function<int(const std::string& tensor)>& of,
                     const Problem& problem, Problems& problems);

// A problem for each of these entries that selects no tensor, with the nearest module as its hint.
void check_known(const Model& model, const std::vector<std::string>& entries, const Problem& place, Problems& problems);

}  // namespace hawser::models
