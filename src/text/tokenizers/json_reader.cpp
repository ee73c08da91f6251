#include "text/tokenizers/json_reader.h"

#include "io/json.h"

namespace hawser::text {

Json JsonReader::parse(std::string_view text) const {
  Problems problems;
  auto json = io::parse_json(text, path_, "", 0, problems);
  problems.throw_if_any();
  if (!json->is_object()) throw UserError({.file = path_, .what = "not a tokenizer.json", .expected = "an object"});
  return *std::move(json);
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

}  // namespace hawser::text
