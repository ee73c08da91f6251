// A line of JSONL as JSON: what readers of training data and of prompts begin with.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "data/jsonl.h"

namespace hawser::data {

// An object, its keys in their order, 200 levels deep at most, with no key twice in any of its objects. Anything else
// is a problem, with its line and byte where that is known; then there is none.
std::optional<nlohmann::ordered_json> parse_json_line(std::string_view line, const LinePlace& place,
                                                      Problems& problems);

}  // namespace hawser::data
