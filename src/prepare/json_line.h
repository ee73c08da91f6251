// `parse_json_line`: parses a line of JSONL; used for training data and for prompts.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "prepare/jsonl.h"

namespace hawser::prepare {

// Returns a JSON object with keys in file order; integers beyond 64 bits keep their digits (io::read_exact_json).
// Rejects anything else, more than 200 levels of nesting, and a key that is in an object twice: adds a problem with
// line and, if known, byte, and returns nullopt.
std::optional<nlohmann::ordered_json> parse_json_line(std::string_view line, const LinePlace& place,
                                                      Problems& problems);

// parse_line for a line that is parsed. Takes values out of it.
std::optional<Line> parse_object(nlohmann::ordered_json& object, const LinePlace& place, Problems& problems);

// A value in a message: a scalar as it is written, the type of an object or a list.
std::string shown(const nlohmann::ordered_json& value);

}  // namespace hawser::prepare
