// A token file in a few lines: lengths with their histogram, what is learned, how full sequences become.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/recipe.h"
#include "data/token_file.h"

namespace hawser::cli {

// `recipe` may be null: then nothing is said of packing.
std::string data_summary(const data::TokenFile& file, const DataRecipe* recipe, std::uint64_t seed, int columns,
                         nlohmann::ordered_json& json);

}  // namespace hawser::cli
