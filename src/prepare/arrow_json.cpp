#include "prepare/arrow_json.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include "base/utf8.h"
#include "prepare/json_output.h"

namespace hawser::prepare {

struct ArrowJson::Type {
  enum class Kind {
    none,
    boolean,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
    float16,
    float32,
    float64,
    text,
    large_text,
    text_view,
    fixed_text,
    decimal,
    date_of_days,
    date_of_milliseconds,
    time,
    timestamp,
    list,
    large_list,
    list_view,
    large_list_view,
    fixed_list,
    structure,
    map,
    dictionary,
  };

  Kind kind = Kind::none;
  std::string name;         // of the field
  std::string key;          // the name as JSON, with the colon: "\"name\":"
  std::vector<Type> parts;  // fields; the items of a list; key and value of a map; indices and values of a dictionary
  std::int64_t size = 0;    // of a fixed-size value: bytes or items; of a time and a timestamp: units in a second
  int scale = 0;            // of a decimal: digits after the point
  bool zoned = false;       // timestamps are in UTC
  bool is_json = false;     // a text that is JSON
};

namespace {

using Type = ArrowJson::Type;
using Kind = Type::Kind;

[[noreturn]] void reject(std::string what, std::string expected = "", std::string got = "", std::string hint = "") {
  throw ArrowValueError{
      {.what = std::move(what), .expected = std::move(expected), .got = std::move(got), .hint = std::move(hint)}};
}

// Adds the place of a part to the error of that part.
template <class Function>
void within(const std::string& place, const Function& function) {
  try {
    function();
  } catch (ArrowValueError& error) {
    std::string& at = error.problem.at;
    at = at.empty() || at.starts_with('[') ? place + at : cat(place, ".", at);
    throw;
  }
}

// The value of a key in the metadata of a field; "" if it has none.
std::string metadata_of(const char* metadata, std::string_view wanted) {
  if (metadata == nullptr) return "";
  const auto number = [&] {
    std::int32_t value = 0;
    std::memcpy(&value, metadata, sizeof value);
    metadata += sizeof value;
    return value;
  };
  const auto text = [&] {
    const std::int32_t size = number();
    metadata += size;
    return std::string_view(metadata - size, static_cast<std::size_t>(size));
  };
  for (std::int32_t left = number(); left > 0; --left) {
    const std::string_view key = text(), value = text();
    if (key == wanted) return std::string(value);
  }
  return "";
}

std::optional<Kind> kind_of_format(std::string_view format) {
  struct Row {
    std::string_view format;
    Kind kind;
  };
  static constexpr Row kRows[] = {
      {"n", Kind::none},
      {"b", Kind::boolean},
      {"c", Kind::int8},
      {"C", Kind::uint8},
      {"s", Kind::int16},
      {"S", Kind::uint16},
      {"i", Kind::int32},
      {"I", Kind::uint32},
      {"l", Kind::int64},
      {"L", Kind::uint64},
      {"e", Kind::float16},
      {"f", Kind::float32},
      {"g", Kind::float64},
      {"u", Kind::text},
      {"z", Kind::text},
      {"U", Kind::large_text},
      {"Z", Kind::large_text},
      {"vu", Kind::text_view},
      {"vz", Kind::text_view},
      {"tdD", Kind::date_of_days},
      {"tdm", Kind::date_of_milliseconds},
      {"+l", Kind::list},
      {"+L", Kind::large_list},
      {"+vl", Kind::list_view},
      {"+vL", Kind::large_list_view},
      {"+s", Kind::structure},
      {"+m", Kind::map},
  };
  for (const Row& row : kRows) {
    if (row.format == format) return row.kind;
  }
  if (format.starts_with("w:")) return Kind::fixed_text;
  if (format.starts_with("+w:")) return Kind::fixed_list;
  if (format.starts_with("d:")) return Kind::decimal;
  if (format.starts_with("tt")) return Kind::time;
  if (format.starts_with("ts")) return Kind::timestamp;
  return std::nullopt;
}

// The name of a type that is not read, for a message.
std::string name_of_type(const std::string& format) {
  constexpr std::pair<std::string_view, const char*> kTypes[] = {
      {"tD", "duration"}, {"ti", "interval"}, {"+u", "union"}, {"+r", "run-end encoded"}, {"d:", "decimal"}};
  for (const auto& [begin, name] : kTypes) {
    if (format.starts_with(begin)) return name;
  }
  return format;
}

// Units in a second, by the letter of a format.
std::int64_t units_of(char letter) {
  return letter == 's' ? 1 : letter == 'm' ? 1000 : letter == 'u' ? 1000000 : 1000000000;
}

Type type_of(const ArrowSchema& schema);

// The type without its dictionary.
Type plain_type_of(const ArrowSchema& schema) {
  Type type{.name = schema.name == nullptr ? "" : schema.name};
  append_json_text(type.name, type.key);
  type.key += ':';
  const std::string_view format = schema.format;
  const auto kind = kind_of_format(format);
  if (!kind)
    reject("column of a type that is not read", "texts, numbers, lists, structs or maps", name_of_type(schema.format));
  type.kind = *kind;
  const std::string_view rest = format.substr(std::min(format.size(), format.find(':')));
  if (type.kind == Kind::fixed_text) type.size = std::atoll(schema.format + 2);
  if (type.kind == Kind::fixed_list) type.size = std::atoll(schema.format + 3);
  if (type.kind == Kind::time || type.kind == Kind::timestamp)
    type.size = units_of(format.size() > 2 ? format[2] : 's');
  if (type.kind == Kind::timestamp) type.zoned = rest.size() > 1;
  if (type.kind == Kind::decimal) {
    // d:precision,scale and optionally the bits, 128 by default
    int precision = 0, bits = 128;
    std::sscanf(schema.format, "d:%d,%d,%d", &precision, &type.scale, &bits);
    type.size = bits / 8;
    if (bits % 32 != 0 || bits < 32 || bits > 256)
      reject("column of a type that is not read", "", name_of_type(schema.format));
  }
  for (std::int64_t i = 0; i < schema.n_children; ++i) {
    const ArrowSchema& part = *schema.children[i];
    if (type.kind == Kind::structure) {
      within(part.name, [&] { type.parts.push_back(type_of(part)); });
    } else {
      type.parts.push_back(type_of(part));
    }
  }
  if (type.kind == Kind::map) {
    std::vector<Type> entry = std::move(type.parts.at(0).parts);
    type.parts = std::move(entry);
    const Type& key = type.parts.at(0);
    const Type& texts = key.kind == Kind::dictionary ? key.parts.at(1) : key;
    if (texts.kind < Kind::text || texts.kind > Kind::fixed_text) {
      reject("map whose keys are no texts", "texts as keys");
    }
  }
  type.is_json = metadata_of(schema.metadata, "ARROW:extension:name") == "arrow.json";
  return type;
}

Type type_of(const ArrowSchema& schema) {
  Type type = plain_type_of(schema);
  if (schema.dictionary == nullptr) return type;
  Type values = type_of(*schema.dictionary);
  values.is_json = values.is_json || type.is_json;
  Type out{.kind = Kind::dictionary, .name = type.name, .key = type.key};
  out.parts.push_back(std::move(type));
  out.parts.push_back(std::move(values));
  return out;
}

// Values of a buffer; `index` includes the offset of the array.
template <class Value>
Value value_at(const ArrowArray& array, int buffer, std::int64_t index) {
  Value value;
  std::memcpy(&value, static_cast<const char*>(array.buffers[buffer]) + index * std::int64_t{sizeof value},
              sizeof value);
  return value;
}

bool bit_at(const void* bits, std::int64_t index) {
  return (static_cast<const unsigned char*>(bits)[index / 8] >> (index % 8) & 1) != 0;
}

std::int64_t integer_at(Kind kind, const ArrowArray& array, std::int64_t row) {
  const std::int64_t index = array.offset + row;
  switch (kind) {
    case Kind::int8:
      return value_at<std::int8_t>(array, 1, index);
    case Kind::uint8:
      return value_at<std::uint8_t>(array, 1, index);
    case Kind::int16:
      return value_at<std::int16_t>(array, 1, index);
    case Kind::uint16:
      return value_at<std::uint16_t>(array, 1, index);
    case Kind::int32:
      return value_at<std::int32_t>(array, 1, index);
    case Kind::uint32:
      return value_at<std::uint32_t>(array, 1, index);
    default:
      return value_at<std::int64_t>(array, 1, index);
  }
}

// IEEE half precision: 1 sign, 5 exponent and 10 mantissa bits.
float half(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const float size = exponent == 31  ? (mantissa == 0 ? INFINITY : NAN)
                     : exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                                     : std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
  return bits >> 15 != 0 ? -size : size;
}

// Where the value of a dictionary is among its values.
std::int64_t dictionary_row(const Type& type, const ArrowArray& array, std::int64_t row) {
  const std::int64_t at = integer_at(type.parts[0].kind, array, row);
  if (at < 0 || at >= array.dictionary->length) reject("index outside of its dictionary");
  return at;
}

bool is_null(const Type& type, const ArrowArray& array, std::int64_t row) {
  if (type.kind == Kind::none) return true;
  const std::int64_t index = array.offset + row;
  if (array.n_buffers > 0 && array.buffers[0] != nullptr && !bit_at(array.buffers[0], index)) return true;
  switch (type.kind) {
    case Kind::dictionary:
      return is_null(type.parts[1], *array.dictionary, dictionary_row(type, array, row));
    case Kind::float16:
      return std::isnan(half(value_at<std::uint16_t>(array, 1, index)));
    case Kind::float32:
      return std::isnan(value_at<float>(array, 1, index));
    case Kind::float64:
      return std::isnan(value_at<double>(array, 1, index));
    default:
      return false;
  }
}

template <class Offset>
std::string_view text_between(const ArrowArray& array, std::int64_t index) {
  const auto begin = value_at<Offset>(array, 1, index), end = value_at<Offset>(array, 1, index + 1);
  return {static_cast<const char*>(array.buffers[2]) + begin, static_cast<std::size_t>(end - begin)};
}

// A view has 16 bytes: its length, then the text itself up to 12 bytes, else 4 bytes of it, a buffer and a place in it.
std::string_view viewed_text(const ArrowArray& array, std::int64_t index) {
  const char* view = static_cast<const char*>(array.buffers[1]) + 16 * index;
  std::array<std::int32_t, 4> words;
  std::memcpy(words.data(), view, 16);
  const auto size = static_cast<std::size_t>(words[0]);
  if (size <= 12) return {view + 4, size};
  return {static_cast<const char*>(array.buffers[2 + words[2]]) + words[3], size};
}

std::string_view text_at(const Type& type, const ArrowArray& array, std::int64_t row) {
  const std::int64_t index = array.offset + row;
  switch (type.kind) {
    case Kind::text:
      return text_between<std::int32_t>(array, index);
    case Kind::large_text:
      return text_between<std::int64_t>(array, index);
    case Kind::text_view:
      return viewed_text(array, index);
    case Kind::fixed_text:
      return {static_cast<const char*>(array.buffers[1]) + index * type.size, static_cast<std::size_t>(type.size)};
    default:
      return text_at(type.parts[1], *array.dictionary, dictionary_row(type, array, row));
  }
}

void expect_utf8(std::string_view text) {
  if (find_invalid_utf8(text) != std::string_view::npos) {
    reject("not UTF-8", "text", "", "without this column, if it has no text");
  }
}

// Appends one JSON value as it is; line breaks between its parts become spaces. What is inside of the brackets is
// checked when the line is parsed.
void append_json_value(std::string_view text, std::string& out) {
  int depth = 0;
  bool quoted = false, any = false, good = true;
  const std::size_t begin = out.size();
  out.append(text);
  for (std::size_t at = begin; at < out.size() && good; ++at) {
    char& c = out[at];
    const bool breaks = c == '\n' || c == '\r';
    if (quoted) {
      if (c == '\\') ++at;
      quoted = c != '"';
      good = !breaks;
    } else if (breaks) {
      c = ' ';
    } else {
      if (c == '{' || c == '[') ++depth;
      if (c == '}' || c == ']') --depth;
      quoted = c == '"';
      good = depth >= 0 && (depth > 0 || (c != ',' && c != ':'));
      any = any || (c != ' ' && c != '\t');
    }
  }
  if (!good || quoted || depth != 0 || !any) reject("not JSON", "JSON, as the type of the column says");
}

void append_text(const Type& type, std::string_view text, std::string& out) {
  expect_utf8(text);
  if (type.is_json) {
    append_json_value(text, out);
  } else {
    append_json_text(text, out);
  }
}

template <class Number>
void append_number(Number number, std::string& out) {
  std::array<char, 32> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
  out.append(digits.data(), end);
}

template <class Float>
void append_float(Float number, std::string& out) {
  if (std::isinf(number)) reject("infinite number", "a number, as JSON has no other");
  const std::size_t begin = out.size();
  append_number(number, out);
  if (out.find_first_of(".e", begin) == out.npos) out += ".0";  // 1 would be an integer
}

// A two's complement number of `size` bytes, with a point before its last `scale` digits.
void append_decimal(const char* bytes, std::int64_t size, int scale, std::string& out) {
  std::array<std::uint32_t, 8> words{};
  const auto count = static_cast<std::size_t>(size / 4);
  std::memcpy(words.data(), bytes, static_cast<std::size_t>(size));
  const bool negative = words[count - 1] >> 31 != 0;
  for (std::size_t i = 0, carry = 1; negative && i < count; ++i) {
    words[i] = ~words[i] + static_cast<std::uint32_t>(carry);
    carry = carry != 0 && words[i] == 0 ? 1 : 0;
  }
  std::string digits;  // from the last to the first
  const auto is_zero = [&] {
    for (const std::uint32_t word : words) {
      if (word != 0) return false;
    }
    return true;
  };
  while (!is_zero()) {
    std::uint64_t rest = 0;
    for (std::size_t i = count; i-- > 0;) {
      rest = rest << 32 | words[i];
      words[i] = static_cast<std::uint32_t>(rest / 10);
      rest %= 10;
    }
    digits += static_cast<char>('0' + rest);
  }
  while (digits.size() <= static_cast<std::size_t>(std::max(0, scale))) digits += '0';
  out += negative ? "\"-" : "\"";
  for (std::size_t left = digits.size(); left-- > 0;) {
    out += digits[left];
    if (scale > 0 && left == static_cast<std::size_t>(scale)) out += '.';
  }
  if (scale < 0 && digits != "0") out.append(static_cast<std::size_t>(-scale), '0');
  out += '"';
}

void append_padded(std::int64_t number, std::size_t width, std::string& out) {
  const std::string digits = std::to_string(number);
  out.append(width - std::min(width, digits.size()), '0');
  out += digits;
}

// `days`: since 1970-01-01.
void append_date(std::int64_t days, std::string& out) {
  constexpr std::int64_t kFirst = -719162, kLast = 2932896;  // 0001-01-01, 9999-12-31
  if (days < kFirst || days > kLast) reject("date out of range", "a year from 1 to 9999", cat("day ", days));
  const std::chrono::year_month_day date{std::chrono::sys_days{std::chrono::days{days}}};
  append_padded(static_cast<int>(date.year()), 4, out);
  out += '-';
  append_padded(static_cast<unsigned>(date.month()), 2, out);
  out += '-';
  append_padded(static_cast<unsigned>(date.day()), 2, out);
}

constexpr std::int64_t kDaySeconds = 86400;

// The time of a day. A fraction has six digits, as Python's isoformat() writes it, or nine.
void append_time(std::int64_t value, std::int64_t units, std::string& out) {
  const std::int64_t seconds = value / units, fraction = value % units;
  append_padded(seconds / 3600, 2, out);
  out += ':';
  append_padded(seconds / 60 % 60, 2, out);
  out += ':';
  append_padded(seconds % 60, 2, out);
  if (fraction == 0) return;
  out += '.';
  const bool nanoseconds = units > 1000000;
  append_padded(nanoseconds ? fraction : fraction * (1000000 / units), nanoseconds ? 9 : 6, out);
}

void append_timestamp(std::int64_t value, const Type& type, std::string& out) {
  const std::int64_t day = kDaySeconds * type.size;
  const std::int64_t days = value / day - (value % day < 0 ? 1 : 0);
  append_date(days, out);
  out += 'T';
  append_time(value - days * day, type.size, out);
  if (type.zoned) out += 'Z';
}

void append_value(const Type& type, const ArrowArray& array, std::int64_t row, std::string& out);

void append_items(const Type& item, const ArrowArray& items, std::int64_t begin, std::int64_t count, std::string& out) {
  out += '[';
  std::int64_t i = 0;
  try {
    for (; i < count; ++i) {
      if (i > 0) out += ',';
      if (is_null(item, items, begin + i)) {
        out += "null";
      } else {
        append_value(item, items, begin + i, out);
      }
    }
  } catch (ArrowValueError&) {
    within(cat("[", i, "]"), [] { throw; });
  }
  out += ']';
}

void append_fields(const Type& type, const ArrowArray& array, std::int64_t row, std::string& out) {
  out += '{';
  bool first = true;
  for (std::size_t i = 0; i < type.parts.size(); ++i) {
    const Type& field = type.parts[i];
    const ArrowArray& values = *array.children[i];
    within(field.name, [&] {
      if (is_null(field, values, array.offset + row)) return;
      if (!first) out += ',';
      first = false;
      out += field.key;
      append_value(field, values, array.offset + row, out);
    });
  }
  out += '}';
}

void append_map(const Type& type, const ArrowArray& array, std::int64_t row, std::string& out) {
  const std::int64_t index = array.offset + row;
  const ArrowArray& entries = *array.children[0];
  const auto begin = value_at<std::int32_t>(array, 1, index), end = value_at<std::int32_t>(array, 1, index + 1);
  out += '{';
  for (std::int64_t at = begin; at < end; ++at) {
    const std::int64_t entry = entries.offset + at;
    const std::string_view key = text_at(type.parts[0], *entries.children[0], entry);
    within(std::string(key), [&] {
      if (at > begin) out += ',';
      expect_utf8(key);
      append_json_text(key, out);
      out += ':';
      if (is_null(type.parts[1], *entries.children[1], entry)) {
        out += "null";
      } else {
        append_value(type.parts[1], *entries.children[1], entry, out);
      }
    });
  }
  out += '}';
}

// Appends a value that is not null.
void append_value(const Type& type, const ArrowArray& array, std::int64_t row, std::string& out) {
  const std::int64_t index = array.offset + row;
  switch (type.kind) {
    case Kind::none:
      break;
    case Kind::boolean:
      out += bit_at(array.buffers[1], index) ? "true" : "false";
      break;
    case Kind::int8:
    case Kind::int16:
    case Kind::int32:
    case Kind::int64:
    case Kind::uint8:
    case Kind::uint16:
    case Kind::uint32:
      append_number(integer_at(type.kind, array, row), out);
      break;
    case Kind::uint64:
      append_number(value_at<std::uint64_t>(array, 1, index), out);
      break;
    case Kind::float16:
      append_float(half(value_at<std::uint16_t>(array, 1, index)), out);
      break;
    case Kind::float32:
      append_float(value_at<float>(array, 1, index), out);
      break;
    case Kind::float64:
      append_float(value_at<double>(array, 1, index), out);
      break;
    case Kind::text:
    case Kind::large_text:
    case Kind::text_view:
    case Kind::fixed_text:
      append_text(type, text_at(type, array, row), out);
      break;
    case Kind::decimal:
      append_decimal(static_cast<const char*>(array.buffers[1]) + index * type.size, type.size, type.scale, out);
      break;
    case Kind::date_of_days:
    case Kind::date_of_milliseconds: {
      const bool days = type.kind == Kind::date_of_days;
      out += '"';
      append_date(days ? value_at<std::int32_t>(array, 1, index)
                       : value_at<std::int64_t>(array, 1, index) / (kDaySeconds * 1000),
                  out);
      out += '"';
      break;
    }
    case Kind::time: {
      const bool narrow = type.size <= 1000;  // seconds and milliseconds have 32 bits
      out += '"';
      append_time(narrow ? value_at<std::int32_t>(array, 1, index) : value_at<std::int64_t>(array, 1, index), type.size,
                  out);
      out += '"';
      break;
    }
    case Kind::timestamp:
      out += '"';
      append_timestamp(value_at<std::int64_t>(array, 1, index), type, out);
      out += '"';
      break;
    case Kind::list: {
      const auto begin = value_at<std::int32_t>(array, 1, index);
      append_items(type.parts[0], *array.children[0], begin, value_at<std::int32_t>(array, 1, index + 1) - begin, out);
      break;
    }
    case Kind::large_list: {
      const auto begin = value_at<std::int64_t>(array, 1, index);
      append_items(type.parts[0], *array.children[0], begin, value_at<std::int64_t>(array, 1, index + 1) - begin, out);
      break;
    }
    case Kind::list_view:
      append_items(type.parts[0], *array.children[0], value_at<std::int32_t>(array, 1, index),
                   value_at<std::int32_t>(array, 2, index), out);
      break;
    case Kind::large_list_view:
      append_items(type.parts[0], *array.children[0], value_at<std::int64_t>(array, 1, index),
                   value_at<std::int64_t>(array, 2, index), out);
      break;
    case Kind::fixed_list:
      append_items(type.parts[0], *array.children[0], index * type.size, type.size, out);
      break;
    case Kind::structure:
      append_fields(type, array, row, out);
      break;
    case Kind::map:
      append_map(type, array, row, out);
      break;
    case Kind::dictionary:
      append_value(type.parts[1], *array.dictionary, dictionary_row(type, array, row), out);
      break;
  }
}

}  // namespace

ArrowJson::ArrowJson(const ArrowSchema& schema) : row_(std::make_shared<Type>(type_of(schema))) {}

void ArrowJson::append(const ArrowArray& rows, std::int64_t row, std::string& out) const {
  append_fields(*row_, rows, row, out);
}

}  // namespace hawser::prepare
