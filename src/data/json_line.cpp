#include "data/json_line.h"

#include <algorithm>
#include <vector>

#include "base/json_depth.h"

namespace hawser::data {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kDeepest = 200;

// A key that occurs twice in an object of this well-formed JSON. The parser would silently keep the first value; a
// parser with callbacks would call one for each of a line's ids.
std::optional<std::string> repeated_key(std::string_view json) {
  struct Open {
    bool object = false;
    std::vector<std::string> keys;
  };
  std::vector<Open> open;
  bool key = false;  // whether the next string is a key
  for (std::size_t at = 0; at < json.size(); ++at) {
    const char c = json[at];
    if (c == '"') {
      const std::size_t begin = at++;
      for (; json[at] != '"'; ++at) at += json[at] == '\\' ? 1 : 0;
      if (!key) continue;
      const std::string_view quoted = json.substr(begin, at + 1 - begin);
      const bool plain = quoted.find('\\') == quoted.npos;
      open.back().keys.push_back(plain ? std::string(quoted.substr(1, quoted.size() - 2))
                                       : Json::parse(quoted).get<std::string>());
      key = false;
    } else if (c == '{' || c == '[') {
      open.push_back({.object = c == '{', .keys = {}});
      key = c == '{';
    } else if (c == ',') {
      key = open.back().object;
    } else if (c == '}' || c == ']') {
      std::vector<std::string>& keys = open.back().keys;
      std::sort(keys.begin(), keys.end());
      if (const auto twice = std::adjacent_find(keys.begin(), keys.end()); twice != keys.end()) return *twice;
      open.pop_back();
      key = false;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<Json> parse_json_line(std::string_view text, const LinePlace& place, Problems& problems) {
  const auto reject = [&](std::string what, std::string expected, std::string got, const std::string& at) {
    problems.add({.file = place.file,
                  .what = std::move(what),
                  .expected = std::move(expected),
                  .got = std::move(got),
                  .at = place.at(at)});
    return std::nullopt;
  };
  // An ordered object copies its values as it grows, and copying is recursive.
  if (const auto deep = deeper_than(text, kDeepest)) {
    return reject("JSON nested too deeply", cat("at most ", kDeepest, " levels"), "",
                  cat("byte ", place.byte + static_cast<std::int64_t>(*deep)));
  }
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::parse_error& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 7: syntax error while ...: REASON"
    const std::string_view what = error.what();
    const std::size_t colon = what.find(": ");
    const std::size_t byte = error.byte > 0 ? error.byte - 1 : 0;
    problems.add({.file = place.file,
                  .what = cat("broken JSON: ", colon == what.npos ? what : what.substr(colon + 2)),
                  .at = place.at(cat("byte ", place.byte + static_cast<std::int64_t>(byte))),
                  .cause = "broken JSON"});
    return std::nullopt;
  } catch (const Json::out_of_range&) {
    problems.add(
        {.file = place.file, .what = "broken JSON: a number is too large", .at = place.at(), .cause = "broken JSON"});
    return std::nullopt;
  }
  // The parser stops at a zero byte and would silently ignore the rest.
  if (const std::size_t zero = text.find('\0'); zero != text.npos) {
    return reject("broken JSON: a zero byte", "", "", cat("byte ", place.byte + static_cast<std::int64_t>(zero)));
  }
  if (const auto twice = repeated_key(text)) return reject("key given twice", "once", *twice, "");
  if (!json.is_object()) return reject(cat(place.unit, " is not an object"), "{...}", json.type_name(), "");
  return json;
}

}  // namespace hawser::data
