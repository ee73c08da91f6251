#include <cmath>
#include <string_view>

#include "base/cat.h"
#include "text/chat/value.h"

namespace hawser::text::chat {
namespace {

// A byte as written in a JSON string.
std::string escaped(char c) {
  constexpr std::string_view kSpecial = "\"\\\n\r\t\b\f", kLetters = "\"\\nrtbf";
  if (const auto at = kSpecial.find(c); at != kSpecial.npos) return {'\\', kLetters[at]};
  if (static_cast<unsigned char>(c) >= 0x20) return {c};
  constexpr std::string_view kDigits = "0123456789abcdef";
  return {'\\', 'u', '0', '0', kDigits[c >> 4], kDigits[c & 15]};
}

void json_text(const Text& text, Text& out) {
  out.bytes += '"';
  // A mark covers the escaped form of its bytes.
  std::vector<std::size_t> places;
  places.reserve(text.bytes.size() + 1);
  for (const char c : text.bytes) {
    places.push_back(out.bytes.size());
    out.bytes += escaped(c);
  }
  places.push_back(out.bytes.size());
  for (const Mark& mark : text.marks) out.marks.push_back(mark.at(places[mark.begin], places[mark.end]));
  out.bytes += '"';
}

void json_value(const Value& value, int indent, int depth, Text& out) {
  if (out.bytes.size() > kMaxBytes) throw TemplateError(cat("tojson output exceeds ", kMaxBytes >> 20, " MiB"));
  const auto line = [&](int level) {
    if (indent >= 0) out.bytes += "\n" + std::string(static_cast<std::size_t>(indent * level), ' ');
  };
  const char* const comma = indent >= 0 ? "," : ", ";
  if (value.is_none()) {
    out.bytes += "null";
  } else if (value.is_bool()) {
    out.bytes += value.truth() ? "true" : "false";
  } else if (value.is_real() && !std::isfinite(value.real())) {
    out.bytes += std::isnan(value.real()) ? "NaN" : value.real() > 0 ? "Infinity" : "-Infinity";
  } else if (value.is_number()) {
    out.bytes += value.repr();
  } else if (value.is_text()) {
    json_text(value.text(), out);
  } else if (value.is_list(ListKind::list) || value.is_list(ListKind::tuple)) {
    out.bytes += '[';
    for (std::size_t i = 0; i < value.list().size(); ++i) {
      if (i > 0) out.bytes += comma;
      line(depth + 1);
      json_value(value.list()[i], indent, depth + 1, out);
    }
    if (!value.list().empty()) line(depth);
    out.bytes += ']';
  } else if (value.is_mapping()) {
    out.bytes += '{';
    bool first = true;
    for (const auto& [key, item] : value.dict().items) {
      if (!first) out.bytes += comma;
      first = false;
      line(depth + 1);
      json_text({key, {}}, out);
      out.bytes += ": ";
      json_value(item, indent, depth + 1, out);
    }
    if (!first) line(depth);
    out.bytes += '}';
  } else {
    throw TemplateError(cat("cannot convert to JSON: ", value.is_undefined() ? value.undefined_name() + " is undefined"
                                                                             : std::string(value.type_name())));
  }
}

}  // namespace

Text to_json(const Value& value, int indent) {
  Text out;
  json_value(value, indent, 0, out);
  return out;
}

}  // namespace hawser::text::chat
