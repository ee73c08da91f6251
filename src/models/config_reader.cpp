#include "models/config_reader.h"

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "io/files.h"

namespace hawser::models {

namespace {
constexpr double kHuge = 1e30;
}

std::string shown(const Json& value) {
  if (value.is_string()) return io::in_quotes(value.get<std::string>());
  if (value.is_array()) return "a list";
  if (value.is_object()) return "an object";
  return value.dump();
}

const Json* ConfigReader::find(const char* key) const {
  const auto found = json_.find(key);
  return found == json_.end() || found->is_null() ? nullptr : &*found;
}

bool ConfigReader::is_null(const char* key) const {
  const auto found = json_.find(key);
  return found != json_.end() && found->is_null();
}

void ConfigReader::reject(const char* key, const std::string& what, const std::string& expected, const std::string& got,
                          const std::string& hint) {
  problems_.add({.file = file_, .what = what, .expected = expected, .got = got, .at = prefix_ + key, .hint = hint});
}

std::int64_t ConfigReader::integer(const char* key, std::int64_t min, std::int64_t max,
                                   std::optional<std::int64_t> absent) {
  const Json* value = find(key);
  const std::string expected = cat("a whole number from ", min, " to ", max);
  if (value == nullptr) {
    if (!absent) reject(key, "missing key", expected, "");
    return absent.value_or(min);
  }
  const auto count = io::as_count(*value);
  if (count && *count >= min && *count <= max) return *count;
  reject(key, "invalid value", expected, shown(*value));
  return absent.value_or(min);
}

double ConfigReader::real(const char* key, bool (*allowed)(double, double), double min, const std::string& expected,
                          std::optional<double> absent) {
  const Json* value = find(key);
  if (value == nullptr) {
    if (!absent) reject(key, "missing key", expected, "");
    return absent.value_or(std::max(min, 1.0));
  }
  if (value->is_number() && value->get<double>() <= kHuge && allowed(value->get<double>(), min)) {
    return value->get<double>();
  }
  reject(key, "invalid value", expected, shown(*value));
  return absent.value_or(std::max(min, 1.0));
}

double ConfigReader::positive(const char* key, std::optional<double> absent) {
  return real(
      key, [](double value, double min) { return value > min; }, 0.0, "a number above 0", absent);
}

double ConfigReader::number(const char* key, double min, std::optional<double> absent) {
  return real(
      key, [](double value, double from) { return value >= from; }, min, cat("a number, at least ", min), absent);
}

void ConfigReader::only(const char* key, double value) {
  const Json* found = find(key);
  if (found == nullptr || (found->is_number() && found->get<double>() == value)) return;
  reject(key, "not supported", cat(value), shown(*found));
}

void ConfigReader::none(const char* key) {
  if (const Json* found = find(key)) reject(key, "not supported", "null", shown(*found));
}

bool ConfigReader::flag(const char* key, bool absent) {
  const Json* value = find(key);
  if (value == nullptr) return absent;
  if (value->is_boolean()) return value->get<bool>();
  reject(key, "invalid value", "true or false", shown(*value));
  return absent;
}

std::string ConfigReader::choice(const char* key, const std::vector<std::string>& supported,
                                 const std::string& absent) {
  const Json* value = find(key);
  if (value == nullptr) return absent;
  const std::string text = value->is_string() ? value->get<std::string>() : "";
  if (std::find(supported.begin(), supported.end(), text) != supported.end()) return text;
  reject(key, "not supported", joined(supported, " or "), shown(*value));
  return absent;
}

std::vector<std::int64_t> ConfigReader::integers(const char* key, std::int64_t max) {
  const Json* value = find(key);
  if (value == nullptr) return {};
  std::vector<std::int64_t> out;
  std::string got = value->is_array() ? "" : shown(*value);
  for (const Json& one : value->is_array() ? *value : Json::array()) {
    const auto number = io::as_count(one);
    if (number && *number <= max) {
      out.push_back(*number);
    } else if (got.empty()) {
      got = cat("a list with ", shown(one));
    }
  }
  if (got.empty()) return out;
  reject(key, "invalid value", cat("a list of whole numbers from 0 to ", max), got);
  return {};
}

std::optional<ConfigReader> ConfigReader::object(const char* key) {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_object()) return ConfigReader(*value, file_, problems_, cat(prefix_, key, "."));
  reject(key, "invalid value", "an object", shown(*value));
  return std::nullopt;
}

}  // namespace hawser::models
