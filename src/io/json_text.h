// Changes of one key in the text of a JSON object. All other bytes stay: key order, spaces, numbers as they were
// written.
//
//   without_key("{\"a\": 1, \"b\": 2}", "a")             {"b": 2}
//   with_value("{\"a\": 1}", "b", "[2, 3]")              {"a": 1, "b": [2, 3]}
//
// The text is an object that read_json (io/json.h) accepts. Keys of nested objects are not meant.
#pragma once

#include <string>

namespace hawser::io {

// The text itself if the object does not have the key.
std::string without_key(const std::string& object, const std::string& key);

// Replaces the key's value, or adds the key as the last one. `value` is JSON text.
std::string with_value(const std::string& object, const std::string& key, const std::string& value);

}  // namespace hawser::io
