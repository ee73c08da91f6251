// Methods of a template's values.
#include <algorithm>
#include <map>
#include <optional>

#include "base/cat.h"
#include "text/chat/template_program.h"
#include "text/chat/texts.h"

namespace hawser::text::chat {
namespace {

// Parameters as in check_arguments; nullopt for unsupported methods.
using Parameters = std::map<std::string, std::string_view>;
std::optional<std::string_view> parameters_of(const Value& object, const std::string& name) {
  static const Parameters kOfText = {{"strip", "/chars"},
                                     {"lstrip", "/chars"},
                                     {"rstrip", "/chars"},
                                     {"split", "sep maxsplit"},
                                     {"rsplit", "sep maxsplit"},
                                     {"startswith", "/prefix"},
                                     {"endswith", "/suffix"},
                                     {"upper", ""},
                                     {"lower", ""},
                                     {"capitalize", ""},
                                     {"title", ""},
                                     {"replace", "/old /new /count"},
                                     {"join", "/iterable"},
                                     {"find", "/sub"},
                                     {"rfind", "/sub"},
                                     {"count", "/sub"},
                                     {"removeprefix", "/prefix"},
                                     {"removesuffix", "/suffix"},
                                     {"isdigit", ""},
                                     {"isnumeric", ""}};
  static const Parameters kOfDict = {{"get", "/key /default"}, {"items", ""}, {"keys", ""}, {"values", ""}};
  static const Parameters kOfList = {{"index", "/value"}, {"count", "/value"}};
  static const Parameters kNone;
  const Parameters& all = object.is_text()       ? kOfText
                          : object.is_mapping()  ? kOfDict
                          : object.is_sequence() ? kOfList
                                                 : kNone;
  const auto found = all.find(name);
  return found == all.end() ? std::nullopt : std::optional(found->second);
}

Value text_method(const Text& text, const std::string& name, const Arguments& a) {
  const auto max = [&](std::size_t place, const char* named) {
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
  if (name == "split") return split(text, a.get(0, "sep"), max(1, "maxsplit"), false);
  if (name == "rsplit") return split(text, a.get(0, "sep"), max(1, "maxsplit"), true);
  if (name == "startswith") return matches(true);
  if (name == "endswith") return matches(false);
  if (name == "upper") return recased(text, "upper", uppercase);
  if (name == "lower") return recased(text, "lower", lowercase);
  if (name == "capitalize") return recased(text, "capitalize", capitalized);
  if (name == "title") return recased(text, "title", titled);
  if (name == "replace") {
    return replace(text, need(a, 0, "old", "replace").text().bytes, need(a, 1, "new", "replace").text().bytes,
                   max(2, "count"));
  }
  if (name == "join") return join(iterate(need(a, 0, "iterable", "join")), text);
  if (name == "find") return position(find_in(text.bytes, need(a, 0, "sub", "find").text().bytes));
  if (name == "rfind") {
    const std::string& what = need(a, 0, "sub", "rfind").text().bytes;
    if (what.size() > kLongestFromRight) throw TemplateError("rfind argument too long");
    return position(text.bytes.rfind(what));
  }
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
  // isdigit, isnumeric
  if (std::ranges::any_of(text.bytes, [](char c) { return static_cast<unsigned char>(c) >= 0x80; })) {
    throw TemplateError(cat(name, " of text beyond ASCII is not supported"));
  }
  return !text.bytes.empty() && std::ranges::all_of(text.bytes, [](char c) { return c >= '0' && c <= '9'; });
}

Value dict_method(const Dict& dict, const std::string& name, const Arguments& a) {
  List out;
  if (name == "get") {
    const Value& key = need(a, 0, "key", "get");
    const Value* found = key.is_text() ? dict.find(key.text().bytes) : nullptr;
    const Value* otherwise = a.get(1, "default");
    return found ? *found : otherwise ? *otherwise : Value(None{});
  }
  for (const auto& [key, item] : dict.items) {
    if (name == "items") out.emplace_back(Value(List{key, item}, ListKind::tuple));
    if (name == "keys") out.emplace_back(key);
    if (name == "values") out.push_back(item);
  }
  return Value(std::move(out), ListKind::view, "dict_" + name);
}

Value list_method(const List& list, const std::string& name, const Arguments& a) {
  const Value& what = need(a, 0, "value", name.c_str());
  const auto is_it = [&](const Value& one) { return equal(one, what); };
  if (name == "count") return static_cast<std::int64_t>(std::ranges::count_if(list, is_it));
  const auto found = std::ranges::find_if(list, is_it);
  if (found == list.end()) throw TemplateError(cat(what.repr(), " is not in the list"));
  return static_cast<std::int64_t>(found - list.begin());
}

}  // namespace

Value call_method(const Value& object, const std::string& name, const Arguments& arguments) {
  if (object.is_undefined()) throw TemplateError(cat("'", object.undefined_name(), "' is undefined"));
  reject_safe(object, "with method", name);
  const auto parameters = parameters_of(object, name);
  if (!parameters) throw TemplateError(cat("method '", name, "' of ", object.type_name(), " is not supported"));
  check_arguments(arguments, *parameters, name);
  if (object.is_text()) return text_method(object.text(), name, arguments);
  return object.is_dict() ? dict_method(object.dict(), name, arguments) : list_method(object.list(), name, arguments);
}

}  // namespace hawser::text::chat
