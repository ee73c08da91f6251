#include "io/json.h"

#include <algorithm>
#include <vector>

#include "io/files.h"

namespace hawser::io {
namespace {

// Offset at which more than kMaxJsonDepth brackets are open for the first time. Unspecified if the text is not JSON.
std::optional<std::int64_t> too_deep_at(std::string_view json) {
  int depth = 0;
  bool quoted = false;
  for (std::size_t at = 0; at < json.size(); ++at) {
    const char c = json[at];
    if (quoted) {
      if (c == '\\') ++at;
      quoted = c != '"';
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxJsonDepth) return static_cast<std::int64_t>(at);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return std::nullopt;
}

// A key that occurs twice in an object of this well-formed JSON. A parser with callbacks would call one for each of a
// line's ids.
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

// "[json.exception.parse_error.101] parse error at line 1, column 7: syntax error while ...: REASON"
std::string reason_of(const Json::parse_error& error) {
  const std::string_view what = error.what();
  const std::size_t colon = what.find(": ");
  return std::string(colon == what.npos ? what : what.substr(colon + 2));
}

}  // namespace

template <class AnyJson>
JsonRead<AnyJson> read_json(std::string_view text) {
  using Kind = JsonError::Kind;
  const auto rejected = [](Kind kind, std::string detail, std::optional<std::int64_t> byte) {
    return JsonRead<AnyJson>{{}, JsonError{kind, std::move(detail), byte}};
  };
  if (const auto byte = too_deep_at(text)) return rejected(Kind::depth, "", byte);
  AnyJson json;
  try {
    json = AnyJson::parse(text);
  } catch (const Json::parse_error& error) {  // error.byte counts the last byte read, from 1
    return rejected(Kind::syntax, reason_of(error), static_cast<std::int64_t>(error.byte) - (error.byte > 0 ? 1 : 0));
  } catch (const Json::out_of_range&) {
    return rejected(Kind::number, "", std::nullopt);
  }
  if (const std::size_t zero = text.find('\0'); zero != text.npos) {
    return rejected(Kind::zero_byte, "", static_cast<std::int64_t>(zero));
  }
  if (auto twice = repeated_key(text)) return rejected(Kind::duplicate_key, *std::move(twice), std::nullopt);
  return {std::move(json), std::nullopt};
}
template JsonRead<Json> read_json(std::string_view text);
template JsonRead<OrderedJson> read_json(std::string_view text);

std::optional<Json> parse_json(std::string_view text, const std::string& file, const std::string& what,
                               std::int64_t first_byte, Problems& problems) {
  auto [json, error] = read_json(text);
  if (!error) return std::move(json);
  const auto reject = [&, byte = error->byte](const char* why, std::string expected, std::string got) {
    problems.add({.file = file,
                  .what = cat(what, what.empty() ? "" : ": ", why),
                  .expected = std::move(expected),
                  .got = std::move(got),
                  .at = byte ? cat("byte ", first_byte + *byte) : ""});
  };
  switch (error->kind) {
    case JsonError::Kind::depth:
      reject("JSON nested too deeply", cat("at most ", kMaxJsonDepth, " levels"), "");
      break;
    case JsonError::Kind::duplicate_key:
      reject("duplicate key", "", in_quotes(error->detail));
      break;
    case JsonError::Kind::number:
      reject("broken JSON", "", "a number out of range");
      break;
    case JsonError::Kind::zero_byte:
      reject("broken JSON", "", "a zero byte");
      break;
    case JsonError::Kind::syntax:
      reject("broken JSON", "", "");
      break;
  }
  return std::nullopt;
}

std::optional<std::int64_t> as_count(const Json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  const auto number = value.get<std::uint64_t>();
  if (number > static_cast<std::uint64_t>(INT64_MAX)) return std::nullopt;
  return static_cast<std::int64_t>(number);
}

std::optional<std::int64_t> count_at(const Json& object, const char* key) {
  if (!object.is_object()) return std::nullopt;
  const auto found = object.find(key);
  return found == object.end() ? std::nullopt : as_count(*found);
}

}  // namespace hawser::io
