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

// Builds a document in which large integers are their digits.
class ExactReader final : public nlohmann::json_sax<OrderedJson> {
 public:
  OrderedJson take() { return std::move(root_); }

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(value); }
  bool number_unsigned(number_unsigned_t value) override { return put(value); }
  bool number_float(number_float_t value, const string_t& text) override {
    if (text.find_first_of(".eE") != text.npos) return put(value);
    return put(OrderedJson::binary(std::vector<std::uint8_t>(text.begin(), text.end())));
  }
  bool string(string_t& value) override { return put(std::move(value)); }
  bool binary(binary_t& value) override { return put(OrderedJson::binary(value)); }
  bool start_object(std::size_t) override { return open(OrderedJson::object()); }
  bool start_array(std::size_t) override { return open(OrderedJson::array()); }
  bool key(string_t& value) override {
    key_ = std::move(value);
    return true;
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
    if (const auto* syntax = dynamic_cast<const Json::parse_error*>(&error)) throw Json::parse_error(*syntax);
    throw Json::out_of_range(dynamic_cast<const Json::out_of_range&>(error));
  }

 private:
  OrderedJson* add(OrderedJson value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    OrderedJson& in = *open_.back();
    if (!in.is_array()) return &(in[key_] = std::move(value));
    in.push_back(std::move(value));
    return &in.back();
  }
  bool put(OrderedJson value) {
    add(std::move(value));
    return true;
  }
  bool open(OrderedJson container) {
    open_.push_back(add(std::move(container)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  OrderedJson root_;
  std::vector<OrderedJson*> open_;
  std::string key_;
};

// Whether the text has 19 digits in a row: it may have an integer beyond 64 bits.
bool has_long_number(std::string_view text) {
  int digits = 0;
  for (const char c : text) {
    digits = c >= '0' && c <= '9' ? digits + 1 : 0;
    if (digits == 19) return true;
  }
  return false;
}

// read_json with `parse` as the parser.
template <class AnyJson, class Parse>
JsonRead<AnyJson> read_with(std::string_view text, Parse parse) {
  using Kind = JsonError::Kind;
  const auto rejected = [](Kind kind, std::string detail, std::optional<std::int64_t> byte) {
    return JsonRead<AnyJson>{{}, JsonError{kind, std::move(detail), byte}};
  };
  if (const auto byte = too_deep_at(text)) return rejected(Kind::depth, "", byte);
  AnyJson json;
  try {
    json = parse(text);
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

}  // namespace

template <class AnyJson>
JsonRead<AnyJson> read_json(std::string_view text) {
  return read_with<AnyJson>(text, [](std::string_view all) { return AnyJson::parse(all); });
}
template JsonRead<Json> read_json(std::string_view text);
template JsonRead<OrderedJson> read_json(std::string_view text);

JsonRead<OrderedJson> read_exact_json(std::string_view text) {
  if (!has_long_number(text)) return read_json<OrderedJson>(text);
  return read_with<OrderedJson>(text, [](std::string_view all) {
    ExactReader reader;
    OrderedJson::sax_parse(all, &reader);
    return reader.take();
  });
}

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
