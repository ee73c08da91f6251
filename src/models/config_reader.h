// `ConfigReader`: typed access to a config.json. Each getter checks type and bounds; on an error it adds a Problem that
// names file and key, and returns the default, so that one pass finds all errors. A null key counts as absent, as in
// transformers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "io/json.h"

namespace hawser::models {

using io::Json;

class ConfigReader {
 public:
  // `json`, an object, must outlive the reader. `prefix` precedes every key in messages: "rope_scaling.".
  ConfigReader(const Json& json, std::string file, Problems& problems, std::string prefix = "")
      : json_(json), file_(std::move(file)), prefix_(std::move(prefix)), problems_(problems) {}

  const Json* find(const char* key) const;  // null if absent or null
  bool has(const char* key) const { return find(key) != nullptr; }
  bool is_null(const char* key) const;  // the key is there, with the value null
  const Json& json() const { return json_; }

  // An integer in [min, max]. Without `absent` the key is required.
  std::int64_t integer(const char* key, std::int64_t min, std::int64_t max,
                       std::optional<std::int64_t> absent = std::nullopt);
  // A number above zero, or at least `min`; at most 1e30, so that arithmetic on it stays finite.
  double positive(const char* key, std::optional<double> absent = std::nullopt);
  double number(const char* key, double min, std::optional<double> absent = std::nullopt);
  // A key that must have the default value if present, because others are not supported.
  void only(const char* key, double value);
  // A key that must be absent or null, because what it turns on is not supported.
  void none(const char* key);
  bool flag(const char* key, bool absent);
  // One of the supported strings.
  std::string choice(const char* key, const std::vector<std::string>& supported, const std::string& absent);
  // A list of whole numbers in [0, max]; empty if it is absent.
  std::vector<std::int64_t> integers(const char* key, std::int64_t max);
  // A reader of the object at `key`; empty if it is absent, or not an object (a problem).
  std::optional<ConfigReader> object(const char* key);

  // A reader of another object, for keys of the same place; `json` must outlive it.
  ConfigReader of(const Json& json) const { return {json, file_, problems_, prefix_}; }

  // Adds a problem at a key.
  void reject(const char* key, const std::string& what, const std::string& expected, const std::string& got,
              const std::string& hint = "");

 private:
  double real(const char* key, bool (*allowed)(double, double), double min, const std::string& expected,
              std::optional<double> absent);

  const Json& json_;
  std::string file_, prefix_;
  Problems& problems_;
};

// A value as messages show it: short, on one line.
std::string shown(const Json& value);

}  // namespace hawser::models
