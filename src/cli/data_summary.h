// Summary of a token file: lengths with their histogram, learned tokens, and packing.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "config/recipe.h"
#include "prepare/prepare.h"
#include "prepare/token_file.h"

namespace hawser::cli {

// `recipe` may be null: the packing is left out.
std::string data_summary(const prepare::TokenFile& file, const DataRecipe* recipe, std::uint64_t seed, int columns,
                         nlohmann::ordered_json& json);

// The data sets of a data.train that mixes several, with their shares; "" if it is one.
std::string mixture_summary(const std::shared_ptr<const prepare::TokenFile>& file, const prepare::PrepareOptions& job,
                            const DataRecipe& recipe, nlohmann::ordered_json& json);

}  // namespace hawser::cli
