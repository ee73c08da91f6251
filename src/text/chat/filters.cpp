// Filters of templates.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "base/cat.h"
#include "text/chat/template_program.h"
#include "text/chat/texts.h"

namespace hawser::text::chat {
namespace {

constexpr std::size_t kMaxUnique = 10000;  // each is compared with all previous ones
constexpr double kMaxInteger = 9.2e18;     // of 64 bits
constexpr std::size_t kNoPlace = 99;       // position of an argument that can only be given by name

// Value at a path of fields such as "function.name".
Value field(const Value& item, const Value& path) {
  if (!path.is_text()) return subscript(item, path);
  Value value = item;
  const Value dot(".");
  for (const Value& part : split(path.text(), &dot, -1, false)) {
    const std::string& name = part.text().bytes;
    std::int64_t index = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), index);
    const bool is_index = error == std::errc() && end == name.data() + name.size() && !name.starts_with('-');
    value = subscript(value, is_index ? Value(index) : part);
  }
  return value;
}

[[noreturn]] void unknown_argument(const std::string& of, const std::string& name) {
  throw TemplateError(cat("argument '", name, "' of ", of, " is not supported"));
}

std::int64_t length_of(const Value& value) {
  if (value.is_text()) return static_cast<std::int64_t>(character_starts(value.text().bytes).size()) - 1;
  if (value.is_list()) return static_cast<std::int64_t>(value.list().size());
  if (value.is_mapping()) return static_cast<std::int64_t>(value.dict().items.size());
  if (value.is_undefined()) return 0;
  throw TemplateError(cat("cannot take the length of ", value.type_name()));
}

List items_of(const Value& value) {
  List out;
  if (value.is_undefined()) return out;
  if (!value.is_mapping()) throw TemplateError(cat("cannot take the items of ", value.type_name()));
  for (const auto& [key, item] : value.dict().items) out.emplace_back(Value(List{key, item}, ListKind::tuple));
  return out;
}

// Argument `attribute` of an item, or the item, in lower case unless `case_sensitive`. `place`: position of the
// argument `case_sensitive`; `attribute` is the next one.
Value sort_key(const Value& item, const Arguments& arguments, std::size_t place) {
  const Value* exact = arguments.get(place, "case_sensitive");
  const Value* by = arguments.get(place + 1, "attribute");
  const bool folds = !exact || !exact->truth();
  Value value = by && !by->is_none() ? field(item, *by) : item;
  return folds && value.is_text() ? Value(recased(value.text(), "comparison", lowercase)) : value;
}

List sorted(List items, const Arguments& arguments, std::size_t reverse_place) {
  const Value* reverse = arguments.get(reverse_place, "reverse");
  const auto key = [&](const Value& item) { return sort_key(item, arguments, reverse_place + 1); };
  std::stable_sort(items.begin(), items.end(), [&](const Value& a, const Value& b) {
    return reverse && reverse->truth() ? compare(key(b), key(a)) < 0 : compare(key(a), key(b)) < 0;
  });
  return items;
}

// The first of the smallest or largest items.
Value extreme(const Value& value, const Arguments& arguments, bool largest) {
  const List items = iterate(value);
  const auto less = [&](const Value& a, const Value& b) {
    return compare(sort_key(a, arguments, 0), sort_key(b, arguments, 0)) < 0;
  };
  const auto found = largest ? std::ranges::max_element(items, less) : std::ranges::min_element(items, less);
  return found == items.end() ? Value(Undefined{"item"}) : *found;
}

// A number of Python's syntax without its underscores; empty if `text` has another character or a wrong underscore.
// Accepted texts may still not be numbers.
std::string number_text(const Text& text, const char* filter) {
  std::string bytes = strip(recased(text, filter, lowercase), nullptr, true, true).bytes;
  const auto digit = [&](std::size_t i) { return i < bytes.size() && bytes[i] >= '0' && bytes[i] <= '9'; };
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == '_') {
      if (i == 0 || !digit(i - 1) || !digit(i + 1)) return "";
    } else {
      out += bytes[i];
    }
  }
  // from_chars accepts a minus but no plus.
  if (out.starts_with('+')) out = out.size() > 1 && (out[1] == '-' || out[1] == '+') ? "" : out.substr(1);
  return out;
}

// Python's float(text); nullopt if it is not a number.
std::optional<double> real_of(const std::string& number) {
  double real = 0;
  const char* const end = number.data() + number.size();
  const auto [stop, error] = std::from_chars(number.data(), end, real);
  if (stop != end || number.empty() || number.find('(') != number.npos) return std::nullopt;
  if (error == std::errc::result_out_of_range) throw TemplateError("number too large");
  return error == std::errc() ? std::optional(real) : std::nullopt;
}

const Value& defined(const Value& value) {
  if (value.is_undefined()) throw TemplateError(cat("'", value.undefined_name(), "' is undefined"));
  return value;
}

Value to_integer(const Value& value, const Arguments& arguments) {
  const Value* given = arguments.get(0, "default");
  const Value otherwise = given ? *given : Value(std::int64_t{0});
  const Value* base = arguments.get(1, "base");
  if (base && !(base->is_int() && base->integer() == 10)) throw TemplateError("int with a base is not supported");
  if (defined(value).is_int() || value.is_bool()) return value.integer();
  double real = 0;
  if (value.is_real()) {
    real = value.real();
  } else if (value.is_text()) {
    const std::string number = number_text(value.text(), "int");
    std::int64_t out = 0;
    const char* const end = number.data() + number.size();
    if (const auto [stop, error] = std::from_chars(number.data(), end, out); stop == end && !number.empty()) {
      if (error == std::errc::result_out_of_range) throw TemplateError("number too large");
      if (error == std::errc()) return out;
    }
    const auto found = real_of(number);
    if (!found || std::isinf(*found)) return otherwise;
    real = *found;
  } else {
    return otherwise;
  }
  if (std::isnan(real)) return otherwise;
  if (!(std::abs(real) < kMaxInteger)) throw TemplateError("number too large");
  return static_cast<std::int64_t>(real);
}

Value to_real(const Value& value, const Arguments& arguments) {
  if (defined(value).is_number()) return value.real();
  const auto found = value.is_text() ? real_of(number_text(value.text(), "float")) : std::nullopt;
  if (found) return *found;
  const Value* otherwise = arguments.get(0, "default");
  return otherwise ? *otherwise : Value(0.0);
}

// With the parameters of transformers' tojson.
Value json_filter(const Value& value, const Arguments& arguments) {
  const Value* indent = arguments.get(1, "indent");
  std::size_t place = 0;
  for (const char* name : {"ensure_ascii", "indent", "separators", "sort_keys"}) {
    const Value* given = arguments.get(place++, name);
    if (!given || given == indent) continue;
    if (name == std::string_view("separators") ? !given->is_none() : given->truth()) {
      throw TemplateError(cat("tojson(", name, "=", given->repr(), ") is not supported"));
    }
  }
  if (!indent || indent->is_none()) return to_json(value);
  const std::int64_t width = indent->integer();
  if (width > 64) throw TemplateError("tojson indent too large");
  return to_json(value, static_cast<int>(std::max<std::int64_t>(width, 0)));
}

}  // namespace

void check_arguments(const Arguments& arguments, std::string_view parameters, const std::string& of) {
  std::size_t place = 0;
  std::set<std::string> by_name;
  while (!parameters.empty()) {
    const std::string_view name = parameters.substr(0, parameters.find(' '));
    parameters.remove_prefix(std::min(name.size() + 1, parameters.size()));
    if (place++ >= arguments.positional.size() && !name.starts_with('/')) by_name.emplace(name);
  }
  if (arguments.positional.size() > place) throw TemplateError(cat("too many arguments of ", of));
  for (const auto& [name, value] : arguments.named) {
    if (by_name.erase(name) == 0) unknown_argument(of, name);
  }
}

Filter find_filter(const std::string& name) {
  using V = const Value&;
  using A = const Arguments&;
  static constexpr const char* kByCase = "case_sensitive attribute";
  static const std::map<std::string, Filter> kFilters = {
      {"trim", {"chars", [](V v, A a) -> Value { return strip(v.str(), a.get(0, "chars"), true, true); }}},
      {"tojson", {"ensure_ascii indent separators sort_keys", json_filter}},
      {"length", {"", [](V v, A) -> Value { return length_of(v); }}},
      {"count", {"", [](V v, A) -> Value { return length_of(v); }}},
      {"join",
       {"d attribute",
        [](V v, A a) -> Value {
          List items = iterate(v);
          const Value* by = a.get(0, "d");
          if (const Value* of = a.get(1, "attribute"); of && !of->is_none()) {
            for (Value& item : items) item = field(item, *of);
          }
          return join(items, by ? by->str() : Text{});
        }}},
      {"upper", {"", [](V v, A) -> Value { return recased(v.str(), "upper", uppercase); }}},
      {"lower", {"", [](V v, A) -> Value { return recased(v.str(), "lower", lowercase); }}},
      {"capitalize", {"", [](V v, A) -> Value { return recased(v.str(), "capitalize", capitalized); }}},
      {"title", {"", [](V v, A) -> Value { return recased(v.str(), "title", titled_words); }}},
      {"first",
       {"",
        [](V v, A) -> Value {
          const List items = iterate(v);
          return items.empty() ? Value(Undefined{"first item"}) : items.front();
        }}},
      {"last",
       {"",
        [](V v, A) -> Value {
          const List items = iterate(v);
          return items.empty() ? Value(Undefined{"last item"}) : items.back();
        }}},
      {"list", {"", [](V v, A) -> Value { return iterate(v); }}},
      {"string", {"", [](V v, A) -> Value { return v.is_safe() ? v : Value(v.str()); }}},
      {"safe", {"", [](V v, A) -> Value { return Value::safe(v.str()); }}},
      {"int", {"default base", to_integer}},
      {"float", {"default", to_real}},
      {"abs",
       {"",
        [](V v, A) -> Value {
          if (v.is_real()) return std::abs(v.real());
          return v.integer() < 0 ? arithmetic("-", std::int64_t{0}, v) : Value(v.integer());
        }}},
      {"default",
       {"default_value boolean",
        [](V v, A a) -> Value {
          const Value* otherwise = a.get(0, "default_value");
          const Value* falsy = a.get(1, "boolean");
          const bool take = v.is_undefined() || (falsy && falsy->truth() && !v.truth());
          return take ? (otherwise ? *otherwise : Value("")) : v;
        }}},
      {"replace",
       {"old new count",
        [](V v, A a) -> Value {
          const Value* max = a.get(2, "count");
          return replace(v.str(), need(a, 0, "old", "replace").str().bytes, need(a, 1, "new", "replace").str().bytes,
                         max && !max->is_none() ? max->integer() : -1);
        }}},
      {"items", {"", [](V v, A) -> Value { return Value(items_of(v), ListKind::generator); }}},
      {"dictsort",
       {"",
        [](V v, A) -> Value {
          Arguments by;
          by.named.emplace_back("attribute", std::int64_t{0});
          return sorted(items_of(v), by, 0);
        }}},
      {"sort", {"reverse case_sensitive attribute", [](V v, A a) -> Value { return sorted(iterate(v), a, 0); }}},
      {"reverse",
       {"",
        [](V v, A) -> Value {
          if (v.is_text()) return slice(v, None{}, None{}, std::int64_t{-1});
          List items = iterate(v);
          std::ranges::reverse(items);
          return Value(std::move(items), v.is_list(ListKind::generator) ? ListKind::list : ListKind::generator);
        }}},
      {"unique",
       {kByCase,
        [](V v, A a) -> Value {
          List out, keys;
          for (const Value& item : iterate(v)) {
            const Value key = sort_key(item, a, 0);
            if (std::ranges::any_of(keys, [&](const Value& one) { return equal(one, key); })) continue;
            out.push_back(item);
            keys.push_back(key);
            if (out.size() > kMaxUnique) throw TemplateError(cat("more than ", kMaxUnique, " unique items"));
          }
          return Value(std::move(out), ListKind::generator);
        }}},
      {"indent", {"width first blank", [](V v, A a) -> Value { return indented(v.text(), a); }}},
      {"min", {kByCase, [](V v, A a) -> Value { return extreme(v, a, false); }}},
      {"max", {kByCase, [](V v, A a) -> Value { return extreme(v, a, true); }}},
      {"sum",
       {"attribute start",
        [](V v, A a) -> Value {
          const Value* start = a.get(1, "start");
          const Value* of = a.get(0, "attribute");
          Value total = start ? *start : Value(std::int64_t{0});
          if (total.is_text()) throw TemplateError("cannot sum texts");
          for (const Value& item : iterate(v)) {
            total = arithmetic("+", total, of && !of->is_none() ? field(item, *of) : item);
          }
          return total;
        }}},
  };
  const auto found = kFilters.find(name == "d" ? "default" : name);
  if (found == kFilters.end()) return {};
  Filter filter = found->second;
  filter.name = name;
  return filter;
}

bool is_selecting(const std::string& filter) {
  return filter == "select" || filter == "reject" || filter == "selectattr" || filter == "rejectattr" ||
         filter == "map";
}

Value select_items(const std::string& filter, const Value& input, const Arguments& arguments) {
  List out;
  Arguments rest = arguments;
  const auto take_first = [&] {
    Value first = rest.positional.at(0);
    rest.positional.erase(rest.positional.begin());
    return first;
  };
  if (filter == "map") {
    const Value* of = arguments.get(kNoPlace, "attribute");
    if (of && arguments.positional.empty()) {
      for (const auto& [key, given] : arguments.named) {
        if (key != "attribute" && key != "default") unknown_argument("map", key);
      }
      const Value* otherwise = arguments.get(kNoPlace, "default");
      for (const Value& item : iterate(input)) {
        const Value value = field(item, *of);
        out.push_back(value.is_undefined() && otherwise && !otherwise->is_none() ? *otherwise : value);
      }
      return Value(std::move(out), ListKind::generator);
    }
    if (rest.positional.empty()) throw TemplateError("map needs a filter or attribute=");
    const std::string name = take_first().text().bytes;
    const Filter apply = find_filter(name);
    if (!apply) throw TemplateError(cat("filter '", name, "' is not supported"));
    for (const Value& item : iterate(input)) out.push_back(apply(item, rest));
    return Value(std::move(out), ListKind::generator);
  }
  const bool by_attribute = filter.ends_with("attr"), wanted = filter.starts_with("select");
  if (by_attribute && rest.positional.empty()) throw TemplateError(cat(filter, " needs a name"));
  const Value name = by_attribute ? take_first() : Value();
  Test test{};
  if (rest.positional.empty()) {
    check_arguments(rest, "", filter);
  } else {
    const std::string test_name = take_first().text().bytes;
    test = find_test(test_name);
    if (!test) throw TemplateError(cat("test '", test_name, "' is not supported"));
  }
  for (const Value& item : iterate(input)) {
    const Value value = by_attribute ? field(item, name) : item;
    if ((test ? test(value, rest) : value.truth()) == wanted) out.push_back(item);
  }
  return Value(std::move(out), ListKind::generator);
}

}  // namespace hawser::text::chat
