// Summary of a token file: lengths with their histogram, learned tokens, and packing.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "config/recipe.h"
#include "prepare/token_file.h"

namespace hawser::cli {

// `recipe` may be null: the packing is left out.
std::string data_summary(const prepare::TokenFile& file, const DataRecipe* recipe, std::uint64_t seed, int columns,
                         nlohmann::ordered_json& json);

}  // namespace hawser::cli
