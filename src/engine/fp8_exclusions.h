// `Fp8Exclusions`: the Linears of FP8 blocks that compute in the compute dtype: those of precision.fp8.exclude, and
// those that have fallen back during the run (engine/fp8_fallback.h).
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "config/recipe.h"
#include "engine/fp8_blocks.h"
#include "models/linear_names.h"

namespace hawser::engine {

class Fp8Exclusions {
 public:
  // `fallbacks`: names of modules (models::modules_at). A Problem for each entry of the recipe that is no regular
  // expression.
  Fp8Exclusions(const Recipe& recipe, const std::vector<std::string>& fallbacks, Problems& problems);

  // The parameter is a weight of one of them. Of a fused Linear the name of one part is enough, of experts that of one
  // expert, on whatever rank: all weights of a Linear on all ranks have one format.
  bool contains(const nn::Param& param) const;
  // A Problem for each entry of the recipe that names no Linear that could be in FP8.
  void check(const models::ModelDescription& description, Problems& problems) const;
  // The entries of the recipe that name no Linear of these blocks: "down_proj, .*[.]7[.].*". It
  // is "" if each names one.
  std::string without_effect(const models::Model& model, const Fp8Blocks& blocks) const;

 private:
  Problem place_;  // of the key
  std::vector<models::ModuleName> entries_, fallbacks_;
};

}  // namespace hawser::engine
