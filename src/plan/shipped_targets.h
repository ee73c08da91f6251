// The texts of targets/*.yaml, built into the binary by embed_targets.cmake.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

namespace hawser::plan {

// (name, text), by name.
std::vector<std::pair<std::string_view, std::string_view>> shipped_target_texts();

}  // namespace hawser::plan
