// `parse_json_line`: parses a line of JSONL; used for training data and for prompts.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "prepare/jsonl.h"

namespace hawser::prepare {

// Returns a JSON object with keys in file order. Rejects anything else, more than 200 levels of nesting, and a key that
// is in an object twice: adds a problem with line and, if known, byte, and returns nullopt.
std::optional<nlohmann::ordered_json> parse_json_line(std::string_view line, const LinePlace& place,
                                                      Problems& problems);

}  // namespace hawser::prepare
