// Builders of schema rows, one for each kind of value. Internal to config/.
//
//   integer("train.steps", HAWSER_FIELD(train.steps), {.min = 1}, "optimizer steps")
#pragma once

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/calendar.h"
#include "base/cat.h"
#include "base/units.h"
#include "config/schema.h"

#define HAWSER_FIELD(path) ::hawser::rows::FieldOf(+[](Recipe & recipe) -> auto& { return recipe.path; })

namespace hawser::rows {

// A field of the recipe. Fields of equal types have one type, so that a builder is compiled once for them.
template <class Value>
class FieldOf {
 public:
  explicit FieldOf(Value& (*access)(Recipe&)) : access_(access) {}
  Value& operator()(Recipe& recipe) const { return access_(recipe); }
  const Value& operator()(const Recipe& recipe) const { return access_(const_cast<Recipe&>(recipe)); }

 private:
  Value& (*access_)(Recipe&);
};

template <class Field>
using ValueOf = std::remove_cvref_t<std::invoke_result_t<Field, Recipe&>>;

struct Range {
  std::int64_t min = std::numeric_limits<std::int64_t>::min();
  std::int64_t max = std::numeric_limits<std::int64_t>::max();        // largest value that later arithmetic supports
  std::int64_t supported = std::numeric_limits<std::int64_t>::max();  // larger values are "not supported yet"
  std::int64_t multiple_of = 1;
  bool in_units = false;  // also 32K and 1M, in units of 1024

  bool bounded() const { return max < std::numeric_limits<std::int64_t>::max(); }
};

struct RealRange {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool min_open = false;  // excludes min itself
  bool max_open = false;

  bool holds(double x) const { return (min_open ? x > min : x >= min) && (max_open ? x < max : x <= max); }
  std::string text() const;  // "above 0, below 1"
};

// Parses a decimal number with an optional sign; rejects spaces and trailing characters.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// "32K" is "32768", and "1M" "1048576"; any other text is itself.
std::string without_unit(const std::string& text);

// The defaults.
const Recipe& default_recipe();

// Sets what all kinds of keys share.
template <class Field>
Key row(const char* name, Field field, std::string values, const char* help) {
  Key key;
  key.name = name;
  key.values = std::move(values);
  key.help = help;
  key.reset = [field](Recipe& recipe) { field(recipe) = field(default_recipe()); };
  return key;
}

template <class Field>
Key integer(const char* name, Field field, Range range, const char* help) {
  using Number = ValueOf<Field>;
  std::string values = "whole number";
  if (range.min > std::numeric_limits<std::int64_t>::min()) values += cat(", at least ", range.min);
  constexpr std::int64_t kNear = 1 << 16;  // larger limits are only those of later arithmetic
  if (range.max <= kNear) values += cat(", at most ", range.max);
  if (range.multiple_of > 1) values += cat(", a multiple of ", range.multiple_of);
  if (range.supported < std::numeric_limits<std::int64_t>::max())
    values = cat(range.supported, " (more is not supported yet)");
  Key key = row(name, field, values, help);
  key.read = [field, range](const YAML::Node& node, Recipe& recipe) -> std::optional<Rejection> {
    std::string expected = "a whole number";
    if (range.min > std::numeric_limits<std::int64_t>::min()) expected += cat(" of at least ", range.min);
    if (!node.IsScalar()) return Rejection{"wrong type", expected, ""};
    const std::string digits = range.in_units ? without_unit(node.Scalar()) : node.Scalar();
    // YAML readers disagree on 010: decimal ten or octal eight.
    const std::size_t first = digits.find_first_not_of("+-");
    if (first + 1 < digits.size() && digits[first] == '0' &&
        digits.find_first_not_of("0123456789", first) == std::string::npos) {
      const std::size_t start = digits.find_first_not_of('0', first);
      return Rejection{"a number with a leading zero", expected,
                       start == std::string::npos ? "0" : digits.substr(start)};
    }
    const auto value = parse_number<Number>(digits);
    if (!value) {
      // For an integer written as a real (1e3, 64.0), the hint is the integer.
      const auto real = parse_number<double>(node.Scalar());
      const bool whole = real && std::abs(*real) < 1e15 && *real == std::floor(*real);
      if (whole && *real < static_cast<double>(range.min)) return Rejection{"out of range", expected, ""};
      const bool beyond_type = real && *real >= std::ldexp(1.0, std::numeric_limits<Number>::digits);
      if (range.bounded() && real && *real > static_cast<double>(range.max))
        return Rejection{"out of range", cat("at most ", range.max), ""};
      if (beyond_type) return Rejection{"out of range", cat("at most ", std::numeric_limits<Number>::max()), ""};
      return Rejection{real ? "not a whole number" : "wrong type", expected,
                       whole ? cat(static_cast<std::int64_t>(*real)) : ""};
    }
    if (std::cmp_less(*value, range.min)) return Rejection{"out of range", expected, ""};
    if (range.bounded() && std::cmp_greater(*value, range.max))
      return Rejection{"out of range", cat("at most ", range.max), ""};
    if (*value % static_cast<Number>(range.multiple_of) != 0) {
      const std::int64_t above = round_up(static_cast<std::int64_t>(*value), range.multiple_of);
      return Rejection{"not a multiple", cat("a multiple of ", range.multiple_of), cat(above)};
    }
    const bool limited = range.supported < std::numeric_limits<std::int64_t>::max();
    if (limited && std::cmp_greater(*value, range.supported))
      return Rejection{kNotSupportedYet, cat(range.supported), ""};
    field(recipe) = *value;
    return std::nullopt;
  };
  key.write = [field](const Recipe& recipe) { return nlohmann::json(field(recipe)); };
  return key;
}

// `field` is a double, or an optional one; `write` is null while it has none.
template <class Field>
Key number(const char* name, Field field, RealRange range, const char* help) {
  Key key = row(name, field, "number" + (range.text().empty() ? "" : ", " + range.text()), help);
  key.read = [field, range](const YAML::Node& node, Recipe& recipe) -> std::optional<Rejection> {
    const std::string expected = "a number" + (range.text().empty() ? "" : " " + range.text());
    const auto value = node.IsScalar() ? parse_number<double>(node.Scalar()) : std::nullopt;
    if (!value) return Rejection{"wrong type", expected, ""};
    if (!std::isfinite(*value) || !range.holds(*value)) return Rejection{"out of range", expected, ""};
    // Steps compute in float32.
    if (std::abs(*value) > static_cast<double>(std::numeric_limits<float>::max()))
      return Rejection{"out of range", "a number that float32 can represent", ""};
    if (*value != 0 && static_cast<float>(*value) == 0)
      return Rejection{"out of range", "a number that float32 does not round to 0", ""};
    field(recipe) = *value;
    return std::nullopt;
  };
  key.write = [field](const Recipe& recipe) {
    if constexpr (std::is_same_v<ValueOf<Field>, std::optional<double>>) {
      return field(recipe) ? nlohmann::json(*field(recipe)) : nlohmann::json();
    } else {
      return nlohmann::json(field(recipe));
    }
  };
  return key;
}

template <class Value>
using EnumChoices = std::vector<std::pair<std::string, Value>>;

// "a", "a or b", "a, b or c"
std::string any_of(const std::vector<std::string>& choices);

// Reads one of the enum choices, or returns why not; `later` are choices that are planned and not supported yet.
template <class Value>
std::optional<Rejection> read_choice(const YAML::Node& node, const EnumChoices<Value>& choices,
                                     const std::vector<std::string>& later, Value& out);

Rejection reject_word(const YAML::Node& node, const std::vector<std::string>& names,
                      const std::vector<std::string>& later);

template <class Value>
std::vector<std::string> names_of(const EnumChoices<Value>& choices) {
  std::vector<std::string> names;
  for (const auto& [name, value] : choices) names.push_back(name);
  return names;
}

template <class Value>
std::optional<Rejection> read_choice(const YAML::Node& node, const EnumChoices<Value>& choices,
                                     const std::vector<std::string>& later, Value& out) {
  for (const auto& [name, value] : choices) {
    if (node.IsScalar() && node.Scalar() == name) {
      out = value;
      return std::nullopt;
    }
  }
  return reject_word(node, names_of(choices), later);
}

template <class Value>
std::string name_of(const EnumChoices<Value>& choices, Value value) {
  for (const auto& [name, candidate] : choices)
    if (candidate == value) return name;
  return "";
}

std::string word_values(const std::vector<std::string>& names, const std::vector<std::string>& later);

// Other spellings of a choice, each with the canonical one.
using Aliases = std::vector<std::pair<std::string, std::string>>;

template <class Field>
Key word(const char* name, Field field, const EnumChoices<ValueOf<Field>>& choices,
         const std::vector<std::string>& later, const char* help, const Aliases& aliases = {}) {
  Key key = row(name, field, word_values(names_of(choices), later), help);
  key.choices = names_of(choices);
  key.read = [field, choices, later, aliases](const YAML::Node& node, Recipe& recipe) {
    for (const auto& [other, written] : aliases) {
      if (node.IsScalar() && node.Scalar() == other) {
        return read_choice(YAML::Node(written), choices, later, field(recipe));
      }
    }
    return read_choice(node, choices, later, field(recipe));
  };
  key.write = [field, choices](const Recipe& recipe) { return nlohmann::json(name_of(choices, field(recipe))); };
  return key;
}

// Text; `unset` describes the empty default.
template <class Field>
Key text(const char* name, Field field, const char* unset, const char* help) {
  Key key = row(name, field, "text", help);
  key.unset = unset;
  key.is_literal = true;
  key.read = [field](const YAML::Node& node, Recipe& recipe) -> std::optional<Rejection> {
    if (!node.IsScalar()) return Rejection{"wrong type", "text", ""};
    field(recipe) = node.Scalar();
    return std::nullopt;
  };
  key.write = [field](const Recipe& recipe) {
    return field(recipe).empty() ? nlohmann::json() : nlohmann::json(field(recipe));
  };
  return key;
}

// A map of names, each with a name or a list of names.
std::optional<Rejection> read_name_map(const YAML::Node& node, std::map<std::string, std::vector<std::string>>& out);
template <class Field>
Key name_map(const char* name, Field field, const char* help) {
  Key key = row(name, field, "map of names", help);
  key.unset = "Hawser's names";
  key.read = [field](const YAML::Node& node, Recipe& recipe) { return read_name_map(node, field(recipe)); };
  key.write = [field](const Recipe& recipe) {
    nlohmann::json map = nlohmann::json::object();
    for (const auto& [ours, names] : field(recipe)) {
      map[ours] = names.size() == 1 ? nlohmann::json(names[0]) : nlohmann::json(names);
    }
    return map.empty() ? nlohmann::json() : map;
  };
  return key;
}

// A day of the calendar, as text.
template <class Field>
Key day(const char* name, Field field, const char* help) {
  Key key = text(name, field, "", help);
  key.values = "date (YYYY-MM-DD)";
  key.read = [field](const YAML::Node& node, Recipe& recipe) -> std::optional<Rejection> {
    if (!node.IsScalar() || !parse_day(node.Scalar())) return Rejection{"wrong type", "a date, YYYY-MM-DD", ""};
    field(recipe) = node.Scalar();
    return std::nullopt;
  };
  return key;
}

template <class Field>
Key path(const char* name, Field field, const char* unset, const char* help) {
  Key key = text(name, field, unset, help);
  key.values = "path";
  key.is_path = true;
  return key;
}

// A path, or one of the given names.
template <class Field, std::size_t count>
Key path_or_name(const char* name, Field field, const std::array<const char*, count>& names, const char* unset,
                 const char* help) {
  Key key = path(name, field, unset, help);
  key.values = "name or path";
  key.choices.assign(names.begin(), names.end());
  return key;
}

// http://HOST[:PORT][/PATH] or https://...; credentials are rejected because every run folder stores its recipe.
std::optional<Rejection> reject_server(const std::string& text);
template <class Field>
Key server(const char* name, Field field, const char* unset, const char* help) {
  Key key = text(name, field, unset, help);
  key.values = "http://HOST:PORT or https://HOST";
  key.read = [field](const YAML::Node& node, Recipe& recipe) -> std::optional<Rejection> {
    if (!node.IsScalar()) return Rejection{"wrong type", "http://HOST:PORT or https://HOST", ""};
    if (auto rejection = reject_server(node.Scalar())) return rejection;
    field(recipe) = node.Scalar();
    return std::nullopt;
  };
  return key;
}

// True for a numeric IPv4 or IPv6 address.
bool is_address(const std::string& text);
template <class Field>
Key address(const char* name, Field field, const char* help) {
  Key key = row(name, field, "IPv4 or IPv6 address", help);
  key.read = [field](const YAML::Node& node, Recipe& recipe) -> std::optional<Rejection> {
    if (!node.IsScalar()) return Rejection{"wrong type", "an IP address such as 127.0.0.1", ""};
    if (!is_address(node.Scalar()))
      return Rejection{"not an IP address", "an address such as 127.0.0.1, 0.0.0.0 or ::1", ""};
    field(recipe) = node.Scalar();
    return std::nullopt;
  };
  key.write = [field](const Recipe& recipe) { return nlohmann::json(field(recipe)); };
  return key;
}

// Reads a list of texts, none of them empty, or returns why not; one text is a list, too, and null an empty one.
// `expected`: "a list of paths".
std::optional<Rejection> read_list(const YAML::Node& node, const char* expected, std::vector<std::string>& out);

// A list of paths; a single path needs no brackets.
template <class Field>
Key paths(const char* name, Field field, const char* unset, const char* help) {
  Key key = row(name, field, "list of paths and globs", help);
  key.unset = unset;
  key.is_path = key.is_literal = key.is_list = true;
  key.read = [field](const YAML::Node& node, Recipe& recipe) -> std::optional<Rejection> {
    std::vector<std::string> list;
    if (auto rejection = read_list(node, "a list of paths", list)) {
      rejection->hint.clear();  // of resolved paths, not of those given
      return rejection;
    }
    field(recipe) = list;
    return std::nullopt;
  };
  key.write = [field](const Recipe& recipe) {
    return field(recipe).empty() ? nlohmann::json() : nlohmann::json(field(recipe));
  };
  return key;
}

// data.train: a list of paths, or of data sets: [{path: books, weight: 0.8}, {path: [a, b], weight: 0.2}].
Key data_sets(const char* name, const char* help);

// data.validation: a list of paths, or a map of named sets: {support: [a.jsonl, b.jsonl], novels: books.txt}.
Key validation_sets(const char* name, const char* unset, const char* help);

// optimizer.groups: a list of groups: [{match: embed_tokens, learning_rate: 1e-5}, {match: [a, b], weight_decay: 0}].
Key param_groups(const char* name, const char* help);

// What the entries of a list have to be.
struct Entries {
  bool (*valid)(const std::string&) = nullptr;  // null: any
  const char* what = "";                        // Rejection::what of others
  const char* expected = "";
  const char* hint = "";

  bool takes(const std::string& entry) const { return valid == nullptr || valid(entry); }
};
// nullopt if all entries are valid.
std::optional<Rejection> reject_entries(const std::vector<std::string>& list, const Entries& entries);

// --set takes a text without brackets as the only name: "q_proj," and "q_proj,,v_proj" have an empty one. Commas in a
// pattern ("{1,2}") are not next to each other, nor at its ends.
std::optional<Rejection> reject_commas(const YAML::Node& node);

// A list of names; one name is a list, too.
template <class Field>
Key names(const char* name, Field field, const char* help, Entries entries = {}) {
  Key key = row(name, field, "list of names", help);
  key.is_literal = key.is_list = true;
  key.read = [field, entries](const YAML::Node& node, Recipe& recipe) -> std::optional<Rejection> {
    std::vector<std::string> list;
    if (auto rejection = read_list(node, "a list of names", list)) return rejection;
    if (auto rejection = reject_commas(node)) return rejection;
    auto rejection = reject_entries(list, entries);
    std::erase_if(list, [&](const std::string& entry) { return !entries.takes(entry); });
    field(recipe) = list;
    return rejection;
  };
  key.write = [field](const Recipe& recipe) { return nlohmann::json(field(recipe)); };
  return key;
}

std::optional<bool> parse_flag(const YAML::Node& node);

template <class Field>
Key flag(const char* name, Field field, const char* help) {
  Key key = row(name, field, "true or false", help);
  key.choices = {"true", "false"};
  key.read = [field](const YAML::Node& node, Recipe& recipe) -> std::optional<Rejection> {
    const auto value = parse_flag(node);
    if (!value) return Rejection{"wrong type", "true or false", ""};
    field(recipe) = *value;
    return std::nullopt;
  };
  key.write = [field](const Recipe& recipe) { return nlohmann::json(field(recipe)); };
  return key;
}

// A boolean with a third value, auto (the default), for an optional field.
template <class Field>
Key automatic_flag(const char* name, Field field, const char* help) {
  Key key = row(name, field, "auto, true or false", help);
  key.choices = {"auto", "true", "false"};
  key.read = [field](const YAML::Node& node, Recipe& recipe) -> std::optional<Rejection> {
    const bool automatic = node.IsScalar() && node.Scalar() == "auto";
    const auto value = parse_flag(node);
    if (!automatic && !value) return Rejection{"wrong type", "auto, true or false", ""};
    field(recipe) = value;
    return std::nullopt;
  };
  key.write = [field](const Recipe& recipe) {
    return field(recipe) ? nlohmann::json(*field(recipe)) : nlohmann::json("auto");
  };
  return key;
}

// One choice for all layers, or a list with one choice per layer.
Key checkpointing(const char* name, const char* help);
std::string checkpointing_text(const MemoryRecipe& memory);  // also declared in config.h

// parallel.pipeline_partition: auto, or the blocks of each model chunk: [9, 8, 8, 7]; [4*8] is [8, 8, 8, 8].
Key pipeline_partition(const char* name, const char* help);
std::string partition_text(const ParallelRecipe& parallel);  // also declared in config.h

// A capacity in bytes with a unit.
template <class Field>
Key bytes(const char* name, Field field, const char* help) {
  Key key = row(name, field, "bytes, as in 24GB or 80GiB", help);
  key.read = [field](const YAML::Node& node, Recipe& recipe) -> std::optional<Rejection> {
    const auto value = node.IsScalar() ? parse_bytes(node.Scalar()) : std::nullopt;
    if (!value) return Rejection{"wrong type", "bytes with a unit", "24GB"};
    if (value->value() <= 0) return Rejection{"out of range", "more than 0 bytes", ""};
    field(recipe) = *value;
    return std::nullopt;
  };
  key.write = [field](const Recipe& recipe) {
    return field(recipe) ? nlohmann::json(field(recipe)->value()) : nlohmann::json();
  };
  return key;
}

}  // namespace hawser::rows
