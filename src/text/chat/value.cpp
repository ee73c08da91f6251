#include "text/chat/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "base/cat.h"
#include "base/utf8.h"
#include "text/chat/texts.h"
#include "text/tokenizers/unicode.h"

namespace hawser::text::chat {

namespace {

constexpr std::size_t kItemBytes = 16;  // size of an item without its text

void check_bytes(std::size_t bytes) {
  if (bytes > kMaxBytes) throw TemplateError(cat("value exceeds ", kMaxBytes >> 20, " MiB"));
}

}  // namespace

void Text::append(const Text& other) {
  check_bytes(bytes.size() + other.bytes.size());
  const std::size_t at = bytes.size();
  bytes += other.bytes;
  for (const Mark& mark : other.marks) marks.push_back(mark.at(mark.begin + at, mark.end + at));
}

Text Text::part(std::size_t begin, std::size_t end) const {
  Text out{bytes.substr(begin, end - begin), {}};
  for (const Mark& mark : marks) {
    if (mark.begin > end || mark.end < begin) continue;
    out.marks.push_back(mark.at(std::max(mark.begin, begin) - begin, std::min(mark.end, end) - begin));
  }
  return out;
}

Text Text::remade(std::string changed) const {
  Text out{std::move(changed), {}};
  if (!marks.empty()) out.marks.push_back(marks[0].at(0, out.bytes.size()));
  return out;
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : items) {
    if (name == key) return &value;
  }
  return nullptr;
}

void Dict::set(const std::string& key, Value value) {
  for (auto& [name, old] : items) {
    if (name == key) {
      old = std::move(value);
      return;
    }
  }
  items.emplace_back(key, std::move(value));
}

const Value* Arguments::get(std::size_t place, std::string_view name) const {
  if (place < positional.size()) return &positional[place];
  for (const auto& [key, value] : named) {
    if (key == name) return &value;
  }
  return nullptr;
}

namespace {

[[noreturn]] void wrong_type(const char* expected, const Value& got) {
  if (got.is_undefined()) throw TemplateError(cat("'", got.undefined_name(), "' is undefined"));
  throw TemplateError(cat("expected ", expected, ", got ", got.type_name()));
}

}  // namespace

Value::Value(Text text) {
  check_bytes(text.bytes.size());
  data_ = std::make_shared<const Text>(std::move(text));
}

Value::Value(List list, ListKind kind, std::string shown) {
  Extent extent;
  for (const Value& item : list) {
    reject_safe(item, "in a list");
    extent.add(item);
  }
  data_ = std::make_shared<const HeldList>(HeldList{std::move(list), extent, kind, std::move(shown)});
}

Value::Value(Dict dict) {
  Extent extent;
  for (const auto& [key, item] : dict.items) {
    if (!dict.is_namespace && !dict.is_loop) reject_safe(item, "in a dict");
    extent.bytes += key.size();
    extent.add(item);
  }
  data_ = std::make_shared<HeldDict>(HeldDict{std::move(dict), extent});
}

Value Value::safe(Text text) {
  Value value(std::move(text));
  value.safe_ = true;
  return value;
}

Value Value::not_text(Value contents) {
  contents.not_text_ = true;
  return contents;
}

void reject_safe(const Value& value, std::string_view where, std::string_view name) {
  if (!value.is_safe()) return;
  throw TemplateError(cat("text of filter 'safe' ", where, name.empty() ? "" : " ", name, " is not supported"));
}

void Value::Extent::add(const Value& item) {
  item.check_can_be_held();
  const Extent of = item.extent();
  bytes += of.bytes + kItemBytes;
  depth = std::max(depth, of.depth + 1);
  check_bytes(bytes);
}

Value::Extent Value::extent() const {
  if (const auto* text = std::get_if<TextPointer>(&data_)) return {(*text)->bytes.size(), 0};
  if (const auto* list = std::get_if<ListPointer>(&data_)) return (*list)->extent;
  if (const auto* dict = std::get_if<DictPointer>(&data_)) return (*dict)->extent;
  return {};
}

void Value::check_can_be_held() const {
  if (extent().depth >= kDeepestValue) throw TemplateError("values nested too deeply");
  if (is_dict() && dict().is_namespace) throw TemplateError("a namespace inside another value is not supported");
}

std::size_t Value::bytes() const {
  if (is_text()) return text().bytes.size();
  return kItemBytes * (is_list() ? std::get<ListPointer>(data_)->list.size() : is_dict() ? dict().items.size() : 1);
}

const Text& Value::text() const {
  if (const auto* text = std::get_if<TextPointer>(&data_)) return **text;
  wrong_type("str", *this);
}

const List& Value::list() const {
  const auto* list = std::get_if<ListPointer>(&data_);
  if (list && (*list)->kind != ListKind::generator) return (*list)->list;
  wrong_type("list", *this);
}

ListKind Value::list_kind() const {
  if (is_list()) return std::get<ListPointer>(data_)->kind;
  wrong_type("list", *this);
}

List Value::take_items() const {
  if (list_kind() != ListKind::generator) return list();
  const HeldList& held = *std::get<ListPointer>(data_);
  if (std::exchange(held.taken, true)) throw TemplateError("reading a generator twice is not supported");
  return held.list;
}

Dict& Value::dict() const {
  if (const auto* dict = std::get_if<DictPointer>(&data_)) return (*dict)->dict;
  wrong_type("dict", *this);
}

const Function& Value::function() const {
  if (const auto* function = std::get_if<FunctionPointer>(&data_)) return **function;
  wrong_type("a function", *this);
}

std::int64_t Value::integer() const {
  if (is_large()) throw TemplateError("number too large");
  if (is_int()) return std::get<std::int64_t>(data_);
  if (is_bool()) return std::get<bool>(data_) ? 1 : 0;
  wrong_type("int", *this);
}

double Value::real() const {
  if (is_large()) throw TemplateError("number too large");
  if (is_real()) return std::get<double>(data_);
  if (is_int() || is_bool()) return static_cast<double>(integer());
  wrong_type("a number", *this);
}

const std::string& Value::digits() const {
  if (const auto* large = std::get_if<LargePointer>(&data_)) return (*large)->digits;
  wrong_type("int", *this);
}

const char* Value::type_name() const {
  if (is_undefined()) return "undefined";
  if (is_none()) return "None";
  if (is_bool()) return "bool";
  if (is_int() || is_large()) return "int";
  if (is_real()) return "float";
  if (is_text()) return "str";
  if (is_list()) {
    constexpr const char* kNames[] = {"list", "tuple", "range", "dict view", "generator"};
    return kNames[static_cast<int>(list_kind())];
  }
  if (is_dict()) return dict().is_namespace ? "namespace" : dict().is_loop ? "loop" : "dict";
  return "function";
}

bool Value::truth() const {
  if (is_undefined() || is_none()) return false;
  if (is_bool()) return std::get<bool>(data_);
  if (is_int()) return std::get<std::int64_t>(data_) != 0;
  if (is_real()) return std::get<double>(data_) != 0.0;
  if (is_text()) return !text().bytes.empty();
  if (is_list()) return is_list(ListKind::generator) || !list().empty();
  if (is_dict()) return !is_mapping() || !dict().items.empty();
  return true;
}

Text Value::str() const {
  if (is_text()) return text();
  if (is_undefined()) return {};
  if (not_text_) {
    const char* const kind = is_none() ? "null" : is_list() ? "a list of parts" : "an object";
    throw TemplateError(cat("the content of a message is ", kind, ", and the template takes text only"));
  }
  return {repr(), {}};
}

std::string format_real(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  const double size = std::abs(value);
  const bool plain = size == 0.0 || (size >= 1e-4 && size < 1e16);
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value,
                                 plain ? std::chars_format::fixed : std::chars_format::scientific)
                       .ptr;
  std::string text(buffer, end);
  if (plain && text.find('.') == std::string::npos) text += ".0";
  return text;
}

namespace {

// As Python's str.isprintable.
bool is_printable(char32_t c) {
  switch (character_of(c).category()) {
    case Category::Cn:
    case Category::Cc:
    case Category::Cf:
    case Category::Co:
    case Category::Zl:
    case Category::Zp:
      return false;
    case Category::Zs:
      return c == ' ';
    default:
      return true;
  }
}

std::string repr_of_text(const std::string& bytes) {
  const char quote = bytes.find('\'') != std::string::npos && bytes.find('"') == std::string::npos ? '"' : '\'';
  std::string out(1, quote);
  for (std::size_t at = 0; at < bytes.size();) {
    const Utf8Step step = utf8_step(std::string_view(bytes).substr(at));
    const std::string_view character = std::string_view(bytes).substr(at, static_cast<std::size_t>(step.bytes));
    const char c = bytes[at];
    at += character.size();
    if (c == quote || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (step.valid && !is_printable(step.character)) {
      const auto code = static_cast<std::uint32_t>(step.character);
      char escape[16];
      std::snprintf(escape, sizeof escape, code > 0xFFFF ? "\\U%08x" : code > 0xFF ? "\\u%04x" : "\\x%02x", code);
      out += escape;
    } else {
      out += character;
    }
  }
  return out + quote;
}

}  // namespace

std::string Value::repr() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "None";
  if (is_bool()) return truth() ? "True" : "False";
  if (is_int()) return std::to_string(integer());
  if (is_large()) return digits();
  if (is_real()) return format_real(real());
  if (is_text()) return repr_of_text(text().bytes);
  if (is_list(ListKind::generator) || is_function() || !(is_list() || is_mapping())) {
    throw TemplateError(cat("a ", type_name(), " as text is not supported"));
  }
  if (is_list(ListKind::range)) return std::get<ListPointer>(data_)->shown;
  std::string out;
  if (is_list()) {
    for (const Value& item : list()) {
      out += (out.empty() ? "" : ", ") + item.repr();
      check_bytes(out.size());
    }
    if (is_list(ListKind::tuple)) return "(" + out + (list().size() == 1 ? ",)" : ")");
    if (is_list(ListKind::view)) return std::get<ListPointer>(data_)->shown + "([" + out + "])";
    return "[" + out + "]";
  }
  for (const auto& [key, item] : dict().items) {
    out += (out.empty() ? "" : ", ") + repr_of_text(key) + ": " + item.repr();
    check_bytes(out.size());
  }
  return "{" + out + "}";
}

bool equal(const Value& a, const Value& b) {
  if (a.is_large() && b.is_large()) return a.digits() == b.digits();
  if (a.is_number() && b.is_number()) {
    return !std::isnan(a.real()) && !std::isnan(b.real()) && compare(a, b) == 0;
  }
  if (a.is_text() && b.is_text()) return a.text().bytes == b.text().bytes;
  if (a.is_list() && b.is_list()) {
    if (a.list_kind() != b.list_kind()) return false;
    if (!a.is_sequence()) throw TemplateError(cat("cannot compare ", a.type_name(), " and ", b.type_name()));
    return std::ranges::equal(a.list(), b.list(), equal);
  }
  if (a.is_dict() && b.is_dict()) {
    if (&a.dict() == &b.dict()) return true;
    if (!a.is_mapping() || !b.is_mapping()) return false;
    if (a.dict().items.size() != b.dict().items.size()) return false;
    return std::ranges::all_of(a.dict().items, [&](const auto& item) {
      const Value* other = b.dict().find(item.first);
      return other && equal(item.second, *other);
    });
  }
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

int compare(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    const auto exact = [](const Value& v) { return v.is_real() ? static_cast<long double>(v.real()) : v.integer(); };
    const long double x = exact(a), y = exact(b);
    if (std::isnan(x) || std::isnan(y)) throw TemplateError("cannot compare nan and a number");
    return x < y ? -1 : x > y ? 1 : 0;
  }
  if (a.is_text() && b.is_text()) return a.text().bytes.compare(b.text().bytes);
  throw TemplateError(cat("cannot compare ", a.type_name(), " and ", b.type_name()));
}

bool contains(const Value& container, const Value& item) {
  if (container.is_text()) return find_in(container.text().bytes, item.text().bytes) != std::string::npos;
  if (container.is_mapping()) return item.is_text() && container.dict().find(item.text().bytes) != nullptr;
  const List items = iterate(container);
  return std::ranges::any_of(items, [&](const Value& other) { return equal(item, other); });
}

std::vector<std::size_t> character_starts(std::string_view bytes) {
  std::vector<std::size_t> starts;
  for (std::size_t at = 0; at < bytes.size(); at += static_cast<std::size_t>(utf8_step(bytes.substr(at)).bytes)) {
    starts.push_back(at);
  }
  starts.push_back(bytes.size());
  return starts;
}

List iterate(const Value& value) {
  if (value.is_list()) return value.take_items();
  List items;
  if (value.is_mapping()) {
    for (const auto& [key, item] : value.dict().items) items.emplace_back(key);
  } else if (value.is_text()) {
    const auto starts = character_starts(value.text().bytes);
    for (std::size_t i = 0; i + 1 < starts.size(); ++i) items.emplace_back(value.text().part(starts[i], starts[i + 1]));
  } else if (!value.is_undefined()) {
    throw TemplateError(cat(value.type_name(), " is not iterable"));
  }
  return items;
}

namespace {

// A copy in which every text has the mark.
Value with_mark(const Value& value, Mark mark, int& names) {
  if (value.is_text()) return Text{value.text().bytes, {mark.at(0, value.text().bytes.size())}};
  if (value.is_list()) {
    List out;
    for (const Value& item : value.list()) out.push_back(with_mark(item, mark, names));
    return value.is_not_text() ? Value::not_text(std::move(out)) : Value(std::move(out));
  }
  if (!value.is_dict()) return value;
  Dict out;
  for (const auto& [key, item] : value.dict().items) {
    Mark own = mark;
    if (item.is_text() && (key == "name" || key == "id" || key == "tool_call_id")) own.name = names++;
    out.items.emplace_back(key, with_mark(item, own, names));
  }
  return value.is_not_text() ? Value::not_text(std::move(out)) : Value(std::move(out));
}

}  // namespace

Value marked(const Value& message, int number, int& names) {
  if (!message.is_dict()) return with_mark(message, {.message = number}, names);
  Dict out;
  for (const auto& [key, item] : message.dict().items) {
    Mark mark{.message = number, .is_content = key == "content"};
    if (item.is_text() && (key == "name" || key == "tool_call_id")) mark.name = names++;
    out.items.emplace_back(key, key == "role" ? item : with_mark(item, mark, names));
  }
  return out;
}

}  // namespace hawser::text::chat
