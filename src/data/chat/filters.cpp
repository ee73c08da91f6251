// Filters of templates.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "base/cat.h"
#include "data/chat/program.h"
#include "data/chat/texts.h"

namespace hawser::data::chat {
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
    value = error == std::errc() && end == name.data() + name.size() ? subscript(value, Value(index))
                                                                     : subscript(value, part);
  }
  return value;
}

std::int64_t length_of(const Value& value) {
  if (value.is_text()) return static_cast<std::int64_t>(character_starts(value.text().bytes).size()) - 1;
  if (value.is_list()) return static_cast<std::int64_t>(value.list().size());
  if (value.is_dict()) return static_cast<std::int64_t>(value.dict().items.size());
  if (value.is_undefined()) return 0;
  throw TemplateError(cat("cannot take the length of ", value.type_name()));
}

List items_of(const Value& value) {
  List out;
  if (value.is_undefined()) return out;
  for (const auto& [key, item] : value.dict().items) out.emplace_back(List{key, item});
  return out;
}

List sorted(List items, const Arguments& arguments, std::size_t reverse_place) {
  const Value* reverse = arguments.get(reverse_place, "reverse");
  const Value* by = arguments.get(reverse_place + 2, "attribute");
  const Value* exact = arguments.get(reverse_place + 1, "case_sensitive");
  const bool folds = !exact || !exact->truth();
  const auto key = [&](const Value& item) {
    Value value = by && !by->is_none() ? field(item, *by) : item;
    return folds && value.is_text() ? Value(recased(value.text(), "sort", lowercase)) : value;
  };
  std::stable_sort(items.begin(), items.end(), [&](const Value& a, const Value& b) {
    return reverse && reverse->truth() ? compare(key(b), key(a)) < 0 : compare(key(a), key(b)) < 0;
  });
  return items;
}

Value to_integer(const Value& value, const Arguments& arguments) {
  const Value* given = arguments.get(0, "default");
  const Value otherwise = given ? *given : Value(std::int64_t{0});
  if (value.is_real()) {
    if (std::isnan(value.real())) return otherwise;
    if (!(std::abs(value.real()) < kMaxInteger)) throw TemplateError("number too large");
    return static_cast<std::int64_t>(value.real());
  }
  if (value.is_number()) return value.integer();
  if (!value.is_text()) return otherwise;
  const Text text = strip(value.text(), nullptr, true, true);
  std::int64_t out = 0;
  const char* begin = text.bytes.data();
  const char* const end = begin + text.bytes.size();
  if (begin != end && *begin == '+') ++begin;
  if (const auto [stop, error] = std::from_chars(begin, end, out); error == std::errc() && stop == end) return out;
  double real = 0;
  if (const auto [stop, error] = std::from_chars(begin, end, real);
      error == std::errc() && stop == end && std::abs(real) < 9e15) {
    return static_cast<std::int64_t>(real);
  }
  return otherwise;
}

Value json_filter(const Value& value, const Arguments& arguments) {
  for (const auto& [name, given] : arguments.named) {
    if (name != "indent" && !(name == "ensure_ascii" && !given.truth())) {
      throw TemplateError(cat("tojson(", name, "=", given.repr(), ") is not supported"));
    }
  }
  const Value* indent = arguments.get(0, "indent");
  const bool none = !indent || indent->is_none();
  return to_json(value, none ? -1 : static_cast<int>(std::clamp<std::int64_t>(indent->integer(), 0, 64)));
}

}  // namespace

Filter find_filter(const std::string& name) {
  using V = const Value&;
  using A = const Arguments&;
  static const std::map<std::string, Filter> kFilters = {
      {"trim", [](V v, A a) -> Value { return strip(v.str(), a.get(0, "chars"), true, true); }},
      {"tojson", json_filter},
      {"length", [](V v, A) -> Value { return length_of(v); }},
      {"count", [](V v, A) -> Value { return length_of(v); }},
      {"join",
       [](V v, A a) -> Value {
         List items = iterate(v);
         const Value* by = a.get(0, "d");
         if (const Value* of = a.get(1, "attribute")) {
           for (Value& item : items) item = field(item, *of);
         }
         return join(items, by ? by->str() : Text{});
       }},
      {"upper", [](V v, A) -> Value { return recased(v.str(), "upper", uppercase); }},
      {"lower", [](V v, A) -> Value { return recased(v.str(), "lower", lowercase); }},
      {"capitalize", [](V v, A) -> Value { return recased(v.str(), "capitalize", capitalized); }},
      {"title", [](V v, A) -> Value { return recased(v.str(), "title", titled); }},
      {"first",
       [](V v, A) -> Value {
         const List items = iterate(v);
         return items.empty() ? Value(Undefined{"first item"}) : items.front();
       }},
      {"last",
       [](V v, A) -> Value {
         const List items = iterate(v);
         return items.empty() ? Value(Undefined{"last item"}) : items.back();
       }},
      {"list", [](V v, A) -> Value { return iterate(v); }},
      {"string", [](V v, A) -> Value { return v.str(); }},
      {"safe", [](V v, A) -> Value { return v; }},
      {"int", to_integer},
      {"float",
       [](V v, A a) -> Value {
         if (v.is_number()) return v.real();
         const Value whole = to_integer(v, a);
         if (!v.is_text()) return whole.real();
         const Text text = strip(v.text(), nullptr, true, true);
         double real = 0;
         const char* const end = text.bytes.data() + text.bytes.size();
         const auto [stop, error] = std::from_chars(text.bytes.data(), end, real);
         return error == std::errc() && stop == end ? real : 0.0;
       }},
      {"abs",
       [](V v, A) -> Value {
         if (v.is_real()) return std::abs(v.real());
         return v.integer() < 0 ? arithmetic("-", std::int64_t{0}, v) : Value(v.integer());
       }},
      {"default",
       [](V v, A a) -> Value {
         const Value* otherwise = a.get(0, "default_value");
         const Value* falsy = a.get(1, "boolean");
         const bool take = v.is_undefined() || (falsy && falsy->truth() && !v.truth());
         return take ? (otherwise ? *otherwise : Value("")) : v;
       }},
      {"replace",
       [](V v, A a) -> Value {
         const Value* max = a.get(2, "count");
         return replace(v.str(), need(a, 0, "old", "replace").str().bytes, need(a, 1, "new", "replace").str().bytes,
                        max && !max->is_none() ? max->integer() : -1);
       }},
      {"items", [](V v, A) -> Value { return items_of(v); }},
      {"dictsort",
       [](V v, A a) -> Value {
         if (!a.positional.empty() || !a.named.empty()) throw TemplateError("dictsort with arguments is not supported");
         Arguments by;
         by.named.emplace_back("attribute", std::int64_t{0});
         return sorted(items_of(v), by, 0);
       }},
      {"sort", [](V v, A a) -> Value { return sorted(iterate(v), a, 0); }},
      {"reverse",
       [](V v, A) -> Value {
         if (v.is_text()) return slice(v, None{}, None{}, std::int64_t{-1});
         List items = iterate(v);
         std::ranges::reverse(items);
         return items;
       }},
      {"unique",
       [](V v, A) -> Value {
         List out;
         for (const Value& item : iterate(v)) {
           if (std::ranges::any_of(out, [&](const Value& one) { return equal(one, item); })) continue;
           out.push_back(item);
           if (out.size() > kMaxUnique) throw TemplateError(cat("more than ", kMaxUnique, " unique items"));
         }
         return out;
       }},
      {"indent", [](V v, A a) -> Value { return indented(v.text(), a); }},
      {"min",
       [](V v, A) -> Value {
         const List items = iterate(v);
         const auto found = std::ranges::min_element(items, [](V x, V y) { return compare(x, y) < 0; });
         return found == items.end() ? Value(Undefined{"smallest item"}) : *found;
       }},
      {"max",
       [](V v, A) -> Value {
         const List items = iterate(v);
         const auto found = std::ranges::max_element(items, [](V x, V y) { return compare(x, y) < 0; });
         return found == items.end() ? Value(Undefined{"largest item"}) : *found;
       }},
      {"sum",
       [](V v, A a) -> Value {
         Value total = std::int64_t{0};
         const Value* of = a.get(0, "attribute");
         for (const Value& item : iterate(v)) total = arithmetic("+", total, of ? field(item, *of) : item);
         return total;
       }},
  };
  const auto found = kFilters.find(name == "d" ? "default" : name);
  return found == kFilters.end() ? nullptr : found->second;
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
    if (const Value* of = arguments.get(kNoPlace, "attribute")) {
      const Value* otherwise = arguments.get(kNoPlace, "default");
      for (const Value& item : iterate(input)) {
        const Value value = field(item, *of);
        out.push_back(value.is_undefined() && otherwise ? *otherwise : value);
      }
      return out;
    }
    if (rest.positional.empty()) throw TemplateError("map needs a filter or attribute=");
    const std::string name = take_first().text().bytes;
    const Filter apply = find_filter(name);
    if (!apply) throw TemplateError(cat("filter '", name, "' is not supported"));
    for (const Value& item : iterate(input)) out.push_back(apply(item, rest));
    return out;
  }
  const bool by_attribute = filter.ends_with("attr"), wanted = filter.starts_with("select");
  if (by_attribute && rest.positional.empty()) throw TemplateError(cat(filter, " needs a name"));
  const Value name = by_attribute ? take_first() : Value();
  Test test = nullptr;
  if (!rest.positional.empty()) {
    const std::string test_name = take_first().text().bytes;
    test = find_test(test_name);
    if (!test) throw TemplateError(cat("test '", test_name, "' is not supported"));
  }
  for (const Value& item : iterate(input)) {
    const Value value = by_attribute ? field(item, name) : item;
    if ((test ? test(value, rest) : value.truth()) == wanted) out.push_back(item);
  }
  return out;
}

}  // namespace hawser::data::chat
