#include "prepare/arrow_type.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>

#include "prepare/json_output.h"

namespace hawser::prepare {
namespace {

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

std::optional<ArrowKind> kind_of_format(std::string_view format) {
  struct Row {
    std::string_view format;
    ArrowKind kind;
  };
  static constexpr Row kRows[] = {
      {"n", ArrowKind::none},
      {"b", ArrowKind::boolean},
      {"c", ArrowKind::int8},
      {"C", ArrowKind::uint8},
      {"s", ArrowKind::int16},
      {"S", ArrowKind::uint16},
      {"i", ArrowKind::int32},
      {"I", ArrowKind::uint32},
      {"l", ArrowKind::int64},
      {"L", ArrowKind::uint64},
      {"e", ArrowKind::float16},
      {"f", ArrowKind::float32},
      {"g", ArrowKind::float64},
      {"u", ArrowKind::text},
      {"z", ArrowKind::text},
      {"U", ArrowKind::large_text},
      {"Z", ArrowKind::large_text},
      {"vu", ArrowKind::text_view},
      {"vz", ArrowKind::text_view},
      {"tdD", ArrowKind::date_of_days},
      {"tdm", ArrowKind::date_of_milliseconds},
      {"+l", ArrowKind::list},
      {"+L", ArrowKind::large_list},
      {"+vl", ArrowKind::list_view},
      {"+vL", ArrowKind::large_list_view},
      {"+s", ArrowKind::structure},
      {"+m", ArrowKind::map},
  };
  for (const Row& row : kRows) {
    if (row.format == format) return row.kind;
  }
  if (format.starts_with("w:")) return ArrowKind::fixed_text;
  if (format.starts_with("+w:")) return ArrowKind::fixed_list;
  if (format.starts_with("d:")) return ArrowKind::decimal;
  if (format.starts_with("tt")) return ArrowKind::time;
  if (format.starts_with("ts")) return ArrowKind::timestamp;
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

// The type without its dictionary.
ArrowType plain_type_of(const ArrowSchema& schema) {
  ArrowType type{.name = schema.name == nullptr ? "" : schema.name};
  append_json_text(type.name, type.key);
  type.key += ':';
  const std::string_view format = schema.format;
  const auto kind = kind_of_format(format);
  if (!kind)
    ArrowValueError::reject("column of a type that is not read", "texts, numbers, lists, structs or maps",
                            name_of_type(schema.format));
  type.kind = *kind;
  const std::string_view rest = format.substr(std::min(format.size(), format.find(':')));
  if (type.kind == ArrowKind::fixed_text) type.size = std::atoll(schema.format + 2);
  if (type.kind == ArrowKind::fixed_list) type.size = std::atoll(schema.format + 3);
  if (type.kind == ArrowKind::time || type.kind == ArrowKind::timestamp)
    type.size = units_of(format.size() > 2 ? format[2] : 's');
  if (type.kind == ArrowKind::timestamp) type.zoned = rest.size() > 1;
  if (type.kind == ArrowKind::decimal) {
    // d:precision,scale and optionally the bits, 128 by default
    int precision = 0, bits = 128;
    std::sscanf(schema.format, "d:%d,%d,%d", &precision, &type.scale, &bits);
    type.size = bits / 8;
    if (bits % 32 != 0 || bits < 32 || bits > 256)
      ArrowValueError::reject("column of a type that is not read", "", name_of_type(schema.format));
  }
  for (std::int64_t i = 0; i < schema.n_children; ++i) {
    const ArrowSchema& part = *schema.children[i];
    if (type.kind == ArrowKind::structure) {
      ArrowValueError::within(part.name, [&] { type.parts.push_back(arrow_type_of(part)); });
    } else {
      type.parts.push_back(arrow_type_of(part));
    }
  }
  if (type.kind == ArrowKind::map) {
    std::vector<ArrowType> entry = std::move(type.parts.at(0).parts);
    type.parts = std::move(entry);
    const ArrowType& key = type.parts.at(0);
    const ArrowType& texts = key.kind == ArrowKind::dictionary ? key.parts.at(1) : key;
    if (texts.kind < ArrowKind::text || texts.kind > ArrowKind::fixed_text) {
      ArrowValueError::reject("map whose keys are no texts", "texts as keys");
    }
  }
  type.is_json = metadata_of(schema.metadata, "ARROW:extension:name") == "arrow.json";
  return type;
}

}  // namespace

ArrowType arrow_type_of(const ArrowSchema& schema) {
  ArrowType type = plain_type_of(schema);
  if (schema.dictionary == nullptr) return type;
  ArrowType values = arrow_type_of(*schema.dictionary);
  values.is_json = values.is_json || type.is_json;
  ArrowType out{.kind = ArrowKind::dictionary, .name = type.name, .key = type.key};
  out.parts.push_back(std::move(type));
  out.parts.push_back(std::move(values));
  return out;
}

}  // namespace hawser::prepare
