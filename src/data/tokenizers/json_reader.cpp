#include "data/tokenizers/json_reader.h"

#include "base/json_depth.h"

namespace hawser::data {
namespace {

constexpr int kDeepestJson = 64;  // the parts are read recursively

}  // namespace

Json JsonReader::parse(std::string_view text) const {
  if (const auto deep = deeper_than(text, kDeepestJson)) {
    throw UserError({.file = path_,
                     .what = "JSON nested too deeply",
                     .expected = cat("at most ", kDeepestJson, " levels"),
                     .at = cat("byte ", *deep)});
  }
  try {
    Json json = Json::parse(text);
    if (!json.is_object()) throw UserError({.file = path_, .what = "not a tokenizer.json", .expected = "an object"});
    return json;
  } catch (const Json::parse_error& error) {
    throw UserError({.file = path_, .what = "broken JSON", .at = cat("byte ", error.byte)});
  } catch (const Json::out_of_range&) {
    throw UserError({.file = path_, .what = "broken JSON", .got = "a number out of range"});
  }
}

void JsonReader::known_keys(const Json& object, const std::string& at, const std::set<std::string>& keys) {
  for (const auto& [key, value] : object.items()) {
    if (!keys.contains(key) && !value.is_null()) reject("unknown key", at.empty() ? key : at + "." + key);
  }
}

const Json& JsonReader::list(const Json& value, const std::string& at) {
  static const Json kEmpty = Json::array();
  if (value.is_array()) return value;
  if (!value.is_null()) wrong_type("a list", value, at);
  return kEmpty;
}

bool JsonReader::check_id(const Json& value, const std::string& at) {
  if (value.is_number_integer() && value >= 0 && value < kMaxIds) return true;
  problems_.add(
      {.file = path_, .what = "bad token id", .expected = cat("0 to ", kMaxIds - 1), .got = value.dump(), .at = at});
  return false;
}

bool read_pattern(JsonReader& reader, const Json& value, const std::string& at, NamedPattern& out) {
  out.regex = value.contains("Regex");
  if (!out.regex && !value.contains("String")) {
    reader.reject("pattern not supported", at);
    return false;
  }
  out.text = value.at(out.regex ? "Regex" : "String").get<std::string>();
  return true;
}

}  // namespace hawser::data
