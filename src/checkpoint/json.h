// Strict JSON parsing for untrusted files: nlohmann's parser, with limits and without duplicate keys.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "tensor/tensor.h"

namespace hawser::checkpoint {

using Json = nlohmann::json;

// Parses all of `text`. Adds a problem and returns nullopt for a syntax error, a duplicate key, or more than
// kMaxJsonDepth nested brackets. `what` names the document in the message; `first_byte` is its offset in `file`.
std::optional<Json> parse_json(std::string_view text, const std::string& file, const std::string& what,
                               std::int64_t first_byte, Problems& problems);
constexpr int kMaxJsonDepth = 32;

// Like parse_json, for text of our own process: a failure is an InternalError.
Json parse_own_json(std::string_view text);

// An integer from 0 to 2^63 - 1; nullopt for floats, negative numbers and anything else.
std::optional<std::int64_t> as_count(const Json& value);
// as_count of a key of an object.
std::optional<std::int64_t> count_at(const Json& object, const char* key);
// An array of at most Shape::kMaxRank counts.
std::optional<Shape> as_shape(const Json& value);
// The product of the sizes and `scale`; nullopt if it does not fit in 63 bits.
std::optional<std::int64_t> checked_product(const Shape& shape, std::int64_t scale);

}  // namespace hawser::checkpoint
