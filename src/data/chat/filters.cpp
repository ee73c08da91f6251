// Filters and methods of templates.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>

#include "base/cat.h"
#include "data/chat/program.h"
#include "data/utf8.h"

namespace hawser::data::chat {
namespace {

bool is_python_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

const Value& need(const Arguments& arguments, std::size_t place, const char* name, const char* of) {
  const Value* value = arguments.get(place, name);
  if (!value) throw TemplateError(cat(of, " needs `", name, "`"));
  return *value;
}

Text strip(const Text& text, const Value* characters, bool left, bool right) {
  const auto starts = character_starts(text.bytes);
  const auto at = [&](std::size_t i) {
    return std::string_view(text.bytes).substr(starts[i], starts[i + 1] - starts[i]);
  };
  const bool given = characters && !characters->is_none();
  const auto drops = [&](std::size_t i) {
    if (!given) return is_python_space(utf8_step(at(i)).character);
    return characters->text().bytes.find(at(i)) != std::string::npos;
  };
  std::size_t begin = 0, end = starts.size() - 1;
  while (left && begin < end && drops(begin)) ++begin;
  while (right && end > begin && drops(end - 1)) --end;
  return text.part(starts[begin], starts[end]);
}

List split(const Text& text, const Value* separator, std::int64_t most, bool from_right) {
  List out;
  if (!separator || separator->is_none()) {
    if (from_right && most >= 0) throw TemplateError("rsplit at white space is not supported");
    const auto starts = character_starts(text.bytes);
    std::size_t i = 0;
    const std::size_t count = starts.size() - 1;
    const auto space = [&](std::size_t k) {
      return is_python_space(utf8_step(std::string_view(text.bytes).substr(starts[k])).character);
    };
    while (true) {
      while (i < count && space(i)) ++i;
      if (i == count) break;
      std::size_t end = i;
      if (most >= 0 && static_cast<std::int64_t>(out.size()) == most) {
        end = count;
        while (end > i && space(end - 1)) --end;
      } else {
        while (end < count && !space(end)) ++end;
      }
      out.emplace_back(text.part(starts[i], starts[end]));
      i = end;
    }
    return out;
  }
  const std::string& by = separator->text().bytes;
  if (by.empty()) throw TemplateError("split by an empty text");
  std::vector<std::size_t> cuts;
  if (from_right) {
    for (std::size_t at = text.bytes.size(); most < 0 || static_cast<std::int64_t>(cuts.size()) < most;) {
      if (at < by.size()) break;
      const std::size_t found = text.bytes.rfind(by, at - by.size());
      if (found == std::string::npos) break;
      cuts.insert(cuts.begin(), found);
      at = found;
    }
  } else {
    for (std::size_t at = 0; most < 0 || static_cast<std::int64_t>(cuts.size()) < most;) {
      const std::size_t found = text.bytes.find(by, at);
      if (found == std::string::npos) break;
      cuts.push_back(found);
      at = found + by.size();
    }
  }
  std::size_t begin = 0;
  for (const std::size_t cut : cuts) {
    out.emplace_back(text.part(begin, cut));
    begin = cut + by.size();
  }
  out.emplace_back(text.part(begin, text.bytes.size()));
  return out;
}

Text replace(const Text& text, const std::string& from, const std::string& to, std::int64_t most) {
  if (from.empty()) throw TemplateError("replace of an empty text is not supported");
  Text out;
  std::size_t begin = 0;
  for (std::int64_t done = 0; most < 0 || done < most; ++done) {
    const std::size_t found = text.bytes.find(from, begin);
    if (found == std::string::npos) break;
    out.append(text.part(begin, found));
    // What is put in stands for what was there.
    const Text old = text.part(found, found + from.size());
    out.append(old.marks.empty() ? Text{to, {}} : old.remade(to));
    begin = found + from.size();
  }
  out.append(text.part(begin, text.bytes.size()));
  return out;
}

// Upper and lower case, of ASCII alone: more would need Python's tables.
Text recased(const Text& text, const char* name, std::string (*change)(std::string)) {
  if (std::ranges::any_of(text.bytes, [](char c) { return static_cast<unsigned char>(c) >= 0x80; })) {
    throw TemplateError(cat(name, " of text beyond ASCII is not supported"));
  }
  return text.remade(change(text.bytes));
}

char up(char c) {
  return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
}
char down(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
}

std::string uppercase(std::string text) {
  std::ranges::transform(text, text.begin(), up);
  return text;
}
std::string lowercase(std::string text) {
  std::ranges::transform(text, text.begin(), down);
  return text;
}
std::string capitalized(std::string text) {
  text = lowercase(std::move(text));
  if (!text.empty()) text[0] = up(text[0]);
  return text;
}
std::string titled(std::string text) {
  bool first = true;
  for (char& c : text) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    c = first ? up(c) : down(c);
    first = !letter;
  }
  return text;
}

Text join(const List& items, const Text& by) {
  Text out;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.append(by);
    out.append(items[i].str());
  }
  return out;
}

// "function.name": fields of fields.
Value field(const Value& item, const Value& path) {
  if (!path.is_text()) return subscript(item, path);
  Value value = item;
  for (const Value& part : split(path.text(), std::make_unique<Value>(".").get(), -1, false)) {
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
  throw TemplateError(cat("length of ", value.type_name()));
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
  if (value.is_real()) return static_cast<std::int64_t>(value.real());
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

Value indented(const Value& value, const Arguments& arguments) {
  const Value* width = arguments.get(0, "width");
  const Value* first = arguments.get(1, "first");
  const Value* blank = arguments.get(2, "blank");
  const std::string space =
      width && width->is_text()
          ? width->text().bytes
          : std::string(static_cast<std::size_t>(width ? std::clamp<std::int64_t>(width->integer(), 0, 1000) : 4), ' ');
  const List lines = split(value.text(), std::make_unique<Value>("\n").get(), -1, false);
  Text out;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.append({"\n", {}});
    const bool wanted = i == 0 ? first && first->truth() : (blank && blank->truth()) || !lines[i].text().bytes.empty();
    if (wanted) out.append({space, {}});
    out.append(lines[i].text());
  }
  return out;
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
      {"abs", [](V v, A) -> Value { return v.is_real() ? Value(std::abs(v.real())) : Value(std::abs(v.integer())); }},
      {"default",
       [](V v, A a) -> Value {
         const Value* otherwise = a.get(0, "default_value");
         const Value* falsy = a.get(1, "boolean");
         const bool take = v.is_undefined() || (falsy && falsy->truth() && !v.truth());
         return take ? (otherwise ? *otherwise : Value("")) : v;
       }},
      {"replace",
       [](V v, A a) -> Value {
         const Value* most = a.get(2, "count");
         return replace(v.str(), need(a, 0, "old", "replace").str().bytes, need(a, 1, "new", "replace").str().bytes,
                        most && !most->is_none() ? most->integer() : -1);
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
           if (std::ranges::none_of(out, [&](const Value& one) { return equal(one, item); })) out.push_back(item);
         }
         return out;
       }},
      {"indent", indented},
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
    if (const Value* of = arguments.get(99, "attribute")) {
      const Value* otherwise = arguments.get(99, "default");
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

namespace {

std::optional<Value> text_method(const Text& text, const std::string& name, const Arguments& a) {
  const auto most = [&](std::size_t place, const char* named) {
    const Value* value = a.get(place, named);
    return value ? value->integer() : -1;
  };
  const auto matches = [&](bool start) {
    const Value& what = need(a, 0, start ? "prefix" : "suffix", name.c_str());
    const List all = what.is_list() ? what.list() : List{what};
    return std::ranges::any_of(all, [&](const Value& one) {
      return start ? text.bytes.starts_with(one.text().bytes) : text.bytes.ends_with(one.text().bytes);
    });
  };
  const auto position = [&](std::size_t byte) -> std::int64_t {
    if (byte == std::string::npos) return -1;
    const auto starts = character_starts(std::string_view(text.bytes).substr(0, byte));
    return static_cast<std::int64_t>(starts.size()) - 1;
  };
  if (name == "strip") return strip(text, a.get(0, "chars"), true, true);
  if (name == "lstrip") return strip(text, a.get(0, "chars"), true, false);
  if (name == "rstrip") return strip(text, a.get(0, "chars"), false, true);
  if (name == "split") return split(text, a.get(0, "sep"), most(1, "maxsplit"), false);
  if (name == "rsplit") return split(text, a.get(0, "sep"), most(1, "maxsplit"), true);
  if (name == "startswith") return matches(true);
  if (name == "endswith") return matches(false);
  if (name == "upper") return recased(text, "upper", uppercase);
  if (name == "lower") return recased(text, "lower", lowercase);
  if (name == "capitalize") return recased(text, "capitalize", capitalized);
  if (name == "title") return recased(text, "title", titled);
  if (name == "replace") {
    return replace(text, need(a, 0, "old", "replace").text().bytes, need(a, 1, "new", "replace").text().bytes,
                   most(2, "count"));
  }
  if (name == "join") return join(iterate(need(a, 0, "iterable", "join")), text);
  if (name == "find") return position(text.bytes.find(need(a, 0, "sub", "find").text().bytes));
  if (name == "rfind") return position(text.bytes.rfind(need(a, 0, "sub", "rfind").text().bytes));
  if (name == "count") {
    const Value& what = need(a, 0, "sub", "count");
    return static_cast<std::int64_t>(split(text, &what, -1, false).size()) - 1;
  }
  if (name == "removeprefix") {
    const std::string& prefix = need(a, 0, "prefix", "removeprefix").text().bytes;
    return text.bytes.starts_with(prefix) ? text.part(prefix.size(), text.bytes.size()) : text;
  }
  if (name == "removesuffix") {
    const std::string& suffix = need(a, 0, "suffix", "removesuffix").text().bytes;
    return text.bytes.ends_with(suffix) ? text.part(0, text.bytes.size() - suffix.size()) : text;
  }
  if (name == "isdigit" || name == "isnumeric") {
    if (std::ranges::any_of(text.bytes, [](char c) { return static_cast<unsigned char>(c) >= 0x80; })) {
      throw TemplateError(cat(name, " of text beyond ASCII is not supported"));
    }
    return !text.bytes.empty() && std::ranges::all_of(text.bytes, [](char c) { return c >= '0' && c <= '9'; });
  }
  return std::nullopt;
}

std::optional<Value> dict_method(const Dict& dict, const std::string& name, const Arguments& a) {
  List out;
  if (name == "get") {
    const Value& key = need(a, 0, "key", "get");
    const Value* found = key.is_text() ? dict.find(key.text().bytes) : nullptr;
    const Value* otherwise = a.get(1, "default");
    return found ? *found : otherwise ? *otherwise : Value(None{});
  }
  if (name != "items" && name != "keys" && name != "values") return std::nullopt;
  for (const auto& [key, item] : dict.items) {
    if (name == "items") out.emplace_back(List{key, item});
    if (name == "keys") out.emplace_back(key);
    if (name == "values") out.push_back(item);
  }
  return out;
}

}  // namespace

Value call_method(const Value& object, const std::string& name, const Arguments& arguments) {
  if (object.is_undefined()) throw TemplateError(cat("'", object.undefined_name(), "' is undefined"));
  std::optional<Value> result;
  if (object.is_text()) result = text_method(object.text(), name, arguments);
  if (object.is_dict()) result = dict_method(object.dict(), name, arguments);
  if (object.is_list() && (name == "index" || name == "count")) {
    const Value& what = need(arguments, 0, "value", name.c_str());
    const List& list = object.list();
    if (name == "count") {
      result =
          static_cast<std::int64_t>(std::ranges::count_if(list, [&](const Value& one) { return equal(one, what); }));
    } else {
      const auto found = std::ranges::find_if(list, [&](const Value& one) { return equal(one, what); });
      if (found == list.end()) throw TemplateError(cat(what.repr(), " is not in the list"));
      result = static_cast<std::int64_t>(found - list.begin());
    }
  }
  if (result) return *std::move(result);
  throw TemplateError(cat("method '", name, "' of ", object.type_name(), " is not supported"));
}

}  // namespace hawser::data::chat
