// JSON, read strictly: the only reader of JSON in Hawser. It is nlohmann's parser with limits for text from outside: at
// most kMaxJsonDepth open brackets (parsers and later code recurse over them), no key twice in an object (parsers keep
// one of the values silently), and no text after a zero byte (nlohmann's parser would ignore it).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace hawser::io {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;  // keeps the order of keys

constexpr int kMaxJsonDepth = 200;

// Why a text was rejected.
struct JsonError {
  enum class Kind { syntax, number, depth, duplicate_key, zero_byte };
  Kind kind = Kind::syntax;
  std::string detail;                // syntax: the parser's reason; duplicate_key: the key
  std::optional<std::int64_t> byte;  // offset in the text, if known
};

template <class AnyJson>
struct JsonRead {
  AnyJson json;
  std::optional<JsonError> error;  // set: `json` is null
};

// Reads all of `text`; Json or OrderedJson.
template <class AnyJson = Json>
JsonRead<AnyJson> read_json(std::string_view text);
extern template JsonRead<Json> read_json(std::string_view text);
extern template JsonRead<OrderedJson> read_json(std::string_view text);

// The same, but an integer beyond 64 bits is not rounded to a float: it becomes a binary value that holds its digits.
// JSON text has no binary values.
JsonRead<OrderedJson> read_exact_json(std::string_view text);

// The same for a caller that treats every rejected text like null.
inline Json json_or_null(std::string_view text) {
  return read_json(text).json;
}

// The same with a problem for a rejected text. `what`, if not empty, names the document in the message; `first_byte` is
// its offset in `file`.
std::optional<Json> parse_json(std::string_view text, const std::string& file, const std::string& what,
                               std::int64_t first_byte, Problems& problems);

// For text that this program wrote: a rejected text is an InternalError.
template <class AnyJson = Json>
AnyJson parse_own_json(std::string_view text) {
  auto [json, error] = read_json<AnyJson>(text);
  HAWSER_CHECK(!error, "JSON of this program cannot be read");
  return std::move(json);
}

// An integer from 0 to 2^63 - 1; nullopt for floats, negative numbers and anything else.
std::optional<std::int64_t> as_count(const Json& value);
// as_count of a key of an object.
std::optional<std::int64_t> count_at(const Json& object, const char* key);

}  // namespace hawser::io
