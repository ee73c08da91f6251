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
#include "prepare/arrow_type.h"
#include "prepare/json_output.h"

namespace hawser::prepare {

namespace {

using Type = ArrowType;

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

std::int64_t integer_at(ArrowKind kind, const ArrowArray& array, std::int64_t row) {
  const std::int64_t index = array.offset + row;
  switch (kind) {
    case ArrowKind::int8:
      return value_at<std::int8_t>(array, 1, index);
    case ArrowKind::uint8:
      return value_at<std::uint8_t>(array, 1, index);
    case ArrowKind::int16:
      return value_at<std::int16_t>(array, 1, index);
    case ArrowKind::uint16:
      return value_at<std::uint16_t>(array, 1, index);
    case ArrowKind::int32:
      return value_at<std::int32_t>(array, 1, index);
    case ArrowKind::uint32:
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
  if (at < 0 || at >= array.dictionary->length) ArrowValueError::reject("index outside of its dictionary");
  return at;
}

bool is_null(const Type& type, const ArrowArray& array, std::int64_t row) {
  if (type.kind == ArrowKind::none) return true;
  const std::int64_t index = array.offset + row;
  if (array.n_buffers > 0 && array.buffers[0] != nullptr && !bit_at(array.buffers[0], index)) return true;
  switch (type.kind) {
    case ArrowKind::dictionary:
      return is_null(type.parts[1], *array.dictionary, dictionary_row(type, array, row));
    case ArrowKind::float16:
      return std::isnan(half(value_at<std::uint16_t>(array, 1, index)));
    case ArrowKind::float32:
      return std::isnan(value_at<float>(array, 1, index));
    case ArrowKind::float64:
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
    case ArrowKind::text:
      return text_between<std::int32_t>(array, index);
    case ArrowKind::large_text:
      return text_between<std::int64_t>(array, index);
    case ArrowKind::text_view:
      return viewed_text(array, index);
    case ArrowKind::fixed_text:
      return {static_cast<const char*>(array.buffers[1]) + index * type.size, static_cast<std::size_t>(type.size)};
    default:
      return text_at(type.parts[1], *array.dictionary, dictionary_row(type, array, row));
  }
}

void expect_utf8(std::string_view text) {
  if (find_invalid_utf8(text) != std::string_view::npos) {
    ArrowValueError::reject("not UTF-8", "text", "", "without this column, if it has no text");
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
  if (!good || quoted || depth != 0 || !any)
    ArrowValueError::reject("not JSON", "JSON, as the type of the column says");
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
  if (std::isinf(number)) ArrowValueError::reject("infinite number", "a number, as JSON has no other");
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
  if (days < kFirst || days > kLast)
    ArrowValueError::reject("date out of range", "a year from 1 to 9999", cat("day ", days));
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
    ArrowValueError::within(cat("[", i, "]"), [] { throw; });
  }
  out += ']';
}

void append_fields(const Type& type, const ArrowArray& array, std::int64_t row, std::string& out) {
  out += '{';
  bool first = true;
  for (std::size_t i = 0; i < type.parts.size(); ++i) {
    const Type& field = type.parts[i];
    const ArrowArray& values = *array.children[i];
    ArrowValueError::within(field.name, [&] {
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
    ArrowValueError::within(std::string(key), [&] {
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
    case ArrowKind::none:
      break;
    case ArrowKind::boolean:
      out += bit_at(array.buffers[1], index) ? "true" : "false";
      break;
    case ArrowKind::int8:
    case ArrowKind::int16:
    case ArrowKind::int32:
    case ArrowKind::int64:
    case ArrowKind::uint8:
    case ArrowKind::uint16:
    case ArrowKind::uint32:
      append_number(integer_at(type.kind, array, row), out);
      break;
    case ArrowKind::uint64:
      append_number(value_at<std::uint64_t>(array, 1, index), out);
      break;
    case ArrowKind::float16:
      append_float(half(value_at<std::uint16_t>(array, 1, index)), out);
      break;
    case ArrowKind::float32:
      append_float(value_at<float>(array, 1, index), out);
      break;
    case ArrowKind::float64:
      append_float(value_at<double>(array, 1, index), out);
      break;
    case ArrowKind::text:
    case ArrowKind::large_text:
    case ArrowKind::text_view:
    case ArrowKind::fixed_text:
      append_text(type, text_at(type, array, row), out);
      break;
    case ArrowKind::decimal:
      append_decimal(static_cast<const char*>(array.buffers[1]) + index * type.size, type.size, type.scale, out);
      break;
    case ArrowKind::date_of_days:
    case ArrowKind::date_of_milliseconds: {
      const bool days = type.kind == ArrowKind::date_of_days;
      out += '"';
      append_date(days ? value_at<std::int32_t>(array, 1, index)
                       : value_at<std::int64_t>(array, 1, index) / (kDaySeconds * 1000),
                  out);
      out += '"';
      break;
    }
    case ArrowKind::time: {
      const bool narrow = type.size <= 1000;  // seconds and milliseconds have 32 bits
      out += '"';
      append_time(narrow ? value_at<std::int32_t>(array, 1, index) : value_at<std::int64_t>(array, 1, index), type.size,
                  out);
      out += '"';
      break;
    }
    case ArrowKind::timestamp:
      out += '"';
      append_timestamp(value_at<std::int64_t>(array, 1, index), type, out);
      out += '"';
      break;
    case ArrowKind::list: {
      const auto begin = value_at<std::int32_t>(array, 1, index);
      append_items(type.parts[0], *array.children[0], begin, value_at<std::int32_t>(array, 1, index + 1) - begin, out);
      break;
    }
    case ArrowKind::large_list: {
      const auto begin = value_at<std::int64_t>(array, 1, index);
      append_items(type.parts[0], *array.children[0], begin, value_at<std::int64_t>(array, 1, index + 1) - begin, out);
      break;
    }
    case ArrowKind::list_view:
      append_items(type.parts[0], *array.children[0], value_at<std::int32_t>(array, 1, index),
                   value_at<std::int32_t>(array, 2, index), out);
      break;
    case ArrowKind::large_list_view:
      append_items(type.parts[0], *array.children[0], value_at<std::int64_t>(array, 1, index),
                   value_at<std::int64_t>(array, 2, index), out);
      break;
    case ArrowKind::fixed_list:
      append_items(type.parts[0], *array.children[0], index * type.size, type.size, out);
      break;
    case ArrowKind::structure:
      append_fields(type, array, row, out);
      break;
    case ArrowKind::map:
      append_map(type, array, row, out);
      break;
    case ArrowKind::dictionary:
      append_value(type.parts[1], *array.dictionary, dictionary_row(type, array, row), out);
      break;
  }
}

}  // namespace

ArrowJson::ArrowJson(const ArrowSchema& schema) : row_(std::make_shared<Type>(arrow_type_of(schema))) {}

void ArrowJson::append(const ArrowArray& rows, std::int64_t row, std::string& out) const {
  append_fields(*row_, rows, row, out);
}

}  // namespace hawser::prepare
