// Operators, functions and tests of templates.
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>

#include "base/cat.h"
#include "text/chat/template_program.h"

namespace hawser::text::chat {
namespace {

constexpr std::int64_t kMaxSteps = 1'000'000, kMaxItems = 10'000'000;
constexpr std::size_t kMaxWork = std::size_t{2} << 30;  // bytes processed by all operations together

std::int64_t checked(std::int64_t value, bool overflow) {
  if (overflow) throw TemplateError("number too large");
  return value;
}

}  // namespace

Value Context::get(const std::string& name) const {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    if (const auto found = (*scope)->find(name); found != (*scope)->end()) return found->second;
  }
  // Defined in jinja; `varargs` and `kwargs` in macros only.
  static const std::set<std::string> kUnsupported = {"cycler", "joiner", "kwargs", "lipsum", "self", "varargs"};
  if (kUnsupported.contains(name)) throw TemplateError(cat("'", name, "' is not supported"));
  return Undefined{name};
}

Context::Scopes Context::enter(const WeakScopes& visible) {
  if (++macros_ > 100) throw TemplateError("macros nested too deeply");
  Scopes inside;
  for (const auto& scope : visible) {
    inside.push_back(scope.lock());
    if (!inside.back()) throw TemplateError("a macro outside the block that defines it is not supported");
  }
  inside.push_back(std::make_shared<Scope>());
  return std::exchange(scopes_, std::move(inside));
}

void Context::write(const Text& text) {
  output_.append(text);
}

void Context::count_step() {
  if (++steps_ > kMaxSteps) throw TemplateError("the template runs too long");
}

void Context::count_work(const Value& value) {
  work_ += value.bytes();
  if (work_ > kMaxWork) throw TemplateError("the template runs too long");
}

namespace {

using Names = std::set<std::string>;

// Attributes of Python's types, without those that begin with an underscore.
const Names& python_attributes(const Value& object) {
  static const Names kNone, kOfRange = {"count", "index", "start", "step", "stop"}, kOfTuple = {"count", "index"};
  static const Names kOfDict = {"clear", "copy",    "fromkeys",   "get",    "items", "keys",
                                "pop",   "popitem", "setdefault", "update", "values"};
  static const Names kOfList = {"append", "clear", "copy",   "count",   "extend", "index",
                                "insert", "pop",   "remove", "reverse", "sort"};
  static const Names kOfText = {
      "capitalize", "casefold",     "center",       "count",   "encode",     "endswith",    "expandtabs",
      "find",       "format",       "format_map",   "index",   "isalnum",    "isalpha",     "isascii",
      "isdecimal",  "isdigit",      "isidentifier", "islower", "isnumeric",  "isprintable", "isspace",
      "istitle",    "isupper",      "join",         "ljust",   "lower",      "lstrip",      "maketrans",
      "partition",  "removeprefix", "removesuffix", "replace", "rfind",      "rindex",      "rjust",
      "rpartition", "rsplit",       "rstrip",       "split",   "splitlines", "startswith",  "strip",
      "swapcase",   "title",        "translate",    "upper",   "zfill"};
  static const Names kOfNumber = {"as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator",
                                  "from_bytes",       "fromhex",   "hex",        "imag",      "is_integer",
                                  "numerator",        "real",      "to_bytes"};
  static const Names kOfLoop = {"changed", "depth", "depth0"};
  static const Names kOfFunction = {"arguments", "caller", "catch_kwargs", "catch_varargs", "explicit_caller", "name"};
  if (object.is_mapping()) return kOfDict;
  if (object.is_dict()) return object.dict().is_loop ? kOfLoop : kNone;
  if (object.is_text()) return kOfText;
  if (object.is_number()) return kOfNumber;
  if (object.is_function()) return kOfFunction;
  if (!object.is_sequence()) return kNone;
  return object.is_list(ListKind::list) ? kOfList : object.is_list(ListKind::tuple) ? kOfTuple : kOfRange;
}

// Attributes that the sandbox hides, because they change their object.
bool is_hidden(const Value& object, const std::string& name) {
  static const Names kOfDict = {"clear", "pop", "popitem", "setdefault", "update"};
  return object.is_mapping() ? kOfDict.contains(name)
                             : object.is_list(ListKind::list) && name != "copy" && name != "count" && name != "index";
}

// An attribute of the object's type in Python: a method, as a function.
Value python_attribute(const Value& object, const std::string& name) {
  if (is_hidden(object, name)) return Undefined{name};
  if (!object.is_mapping() && !object.is_text() && !object.is_list()) {
    throw TemplateError(cat("attribute '", name, "' of ", object.type_name(), " is not supported"));
  }
  return Function([object, name](const Arguments& arguments) { return call_method(object, name, arguments); });
}

}  // namespace

bool has_python_attribute(const Value& object, const std::string& name) {
  if (name.starts_with("__") && name.ends_with("__")) throw TemplateError(cat("'", name, "' is not supported"));
  return python_attributes(object).contains(name);
}

std::optional<Value> field(const Value& object, const std::string& name) {
  const Value* found = object.is_dict() ? object.dict().find(name) : nullptr;
  if (found == nullptr) return std::nullopt;
  if (object.dict().is_loop && found->is_function() && name != "cycle") return found->function()({});
  return *found;
}

Value attribute(const Value& object, const std::string& name) {
  if (object.is_undefined()) throw TemplateError(cat("'", object.undefined_name(), "' is undefined"));
  if (has_python_attribute(object, name)) return python_attribute(object, name);
  return field(object, name).value_or(Undefined{name});
}

namespace {

// Resolves a Python index into `size` items; false if it is out of range.
bool place(std::int64_t index, std::size_t size, std::size_t& out) {
  if (index < 0) index += static_cast<std::int64_t>(size);
  if (index < 0 || index >= static_cast<std::int64_t>(size)) return false;
  out = static_cast<std::size_t>(index);
  return true;
}

}  // namespace

Value subscript(const Value& object, const Value& index) {
  if (object.is_undefined()) throw TemplateError(cat("'", object.undefined_name(), "' is undefined"));
  reject_safe(object, "with an index");
  if (index.is_text()) {
    const std::string& name = index.text().bytes;
    const std::optional<Value> found = field(object, name);
    return found ? *found : attribute(object, name);
  }
  std::size_t at = 0;
  if (object.is_sequence() && index.is_int()) {
    return place(index.integer(), object.list().size(), at) ? object.list()[at]
                                                            : Value(Undefined{"item " + index.repr()});
  }
  if (object.is_text() && index.is_int()) {
    const auto starts = character_starts(object.text().bytes);
    if (place(index.integer(), starts.size() - 1, at)) return object.text().part(starts[at], starts[at + 1]);
  }
  return Undefined{"item"};
}

Value slice(const Value& object, const Value& from, const Value& to, const Value& step) {
  const bool text = object.is_text();
  reject_safe(object, "with a slice");
  if (!text && !object.is_list(ListKind::list) && !object.is_list(ListKind::tuple))
    throw TemplateError(cat("cannot slice ", object.type_name()));
  const std::vector<std::size_t> starts = text ? character_starts(object.text().bytes) : std::vector<std::size_t>{};
  const auto size = static_cast<std::int64_t>(text ? starts.size() - 1 : object.list().size());
  const std::int64_t by = step.is_none() ? 1 : step.integer();
  if (by == 0) throw TemplateError("slice step is zero");
  const auto bound = [&](const Value& given, std::int64_t otherwise) {
    if (given.is_none()) return otherwise;
    std::int64_t at = given.integer();
    if (at < 0) at += size;
    return std::clamp<std::int64_t>(at, by < 0 ? -1 : 0, by < 0 ? size - 1 : size);
  };
  const std::int64_t first = bound(from, by < 0 ? size - 1 : 0), end = bound(to, by < 0 ? -1 : size);
  if (text && by == 1) {
    return first < end ? object.text().part(starts[first], starts[end])
                       : object.text().part(starts[first], starts[first]);
  }
  List list;
  Text out;
  for (std::int64_t i = first; by > 0 ? i < end : i > end; i += by) {
    if (text) {
      out.append(object.text().part(starts[i], starts[i + 1]));
    } else {
      list.push_back(object.list()[i]);
    }
  }
  return text ? Value(std::move(out)) : Value(std::move(list), object.list_kind());
}

namespace {

Value times(const Value& what, std::int64_t count) {
  count = std::max<std::int64_t>(0, count);
  if (what.is_text()) {
    if (static_cast<double>(count) * static_cast<double>(what.text().bytes.size()) > static_cast<double>(kMaxBytes)) {
      throw TemplateError("text too long");
    }
    Text out;
    for (std::int64_t i = 0; i < count; ++i) out.append(what.text());
    return out;
  }
  if (static_cast<double>(count) * static_cast<double>(what.list().size()) > static_cast<double>(kMaxItems)) {
    throw TemplateError("list too long");
  }
  List out;
  for (std::int64_t i = 0; i < count; ++i) out.insert(out.end(), what.list().begin(), what.list().end());
  return Value(std::move(out), what.list_kind());
}

// Python's remainder and quotient of floats.
double remainder_of(double x, double y) {
  const double rest = std::fmod(x, y);
  if (rest == 0) return std::copysign(0.0, y);
  return (y < 0) != (rest < 0) ? rest + y : rest;
}

double quotient_of(double x, double y) {
  const double rest = std::fmod(x, y);
  const double exact = (x - rest) / y - (rest != 0 && (y < 0) != (rest < 0) ? 1 : 0);
  if (exact == 0) return std::copysign(0.0, x / y);
  const double down = std::floor(exact);
  return exact - down > 0.5 ? down + 1 : down;
}

double power_of(double x, double y) {
  if (x == 0 && y < 0) throw TemplateError("division by zero");
  const double power = std::pow(x, y);
  if (!std::isfinite(power) && std::isfinite(x) && std::isfinite(y)) throw TemplateError("number too large");
  return power;
}

Value of_integers(const std::string& symbol, std::int64_t x, std::int64_t y) {
  std::int64_t out = 0;
  if (symbol == "+") return checked(out, __builtin_add_overflow(x, y, &out)), Value(out);
  if (symbol == "-") return checked(out, __builtin_sub_overflow(x, y, &out)), Value(out);
  if (symbol == "*") return checked(out, __builtin_mul_overflow(x, y, &out)), Value(out);
  if (symbol == "**") {
    const double power = power_of(static_cast<double>(x), static_cast<double>(y));
    if (y < 0) return power;
    if (std::abs(power) > 9e15) throw TemplateError("number too large");
    return static_cast<std::int64_t>(power);
  }
  if (y == 0) throw TemplateError("division by zero");
  if (symbol == "/") {
    constexpr std::int64_t kExact = std::int64_t{1} << 53;
    if (std::max(x, y) > kExact || std::min(x, y) < -kExact) throw TemplateError("number too large");
    return static_cast<double>(x) / static_cast<double>(y);
  }
  if (y == -1) return of_integers(symbol == "%" ? "*" : "-", 0, symbol == "%" ? 0 : x);
  // As in Python, the quotient rounds down and the remainder has the divisor's sign.
  const std::int64_t quotient = x / y - ((x % y != 0) && ((x < 0) != (y < 0)));
  return symbol == "//" ? Value(quotient) : Value(x - quotient * y);
}

}  // namespace

Value arithmetic(const std::string& symbol, const Value& a, const Value& b) {
  for (const Value* one : {&a, &b}) {
    if (one->is_undefined()) throw TemplateError(cat("'", one->undefined_name(), "' is undefined"));
    reject_safe(*one, "as an operand of", symbol);
  }
  if (a.is_number() && b.is_number()) {
    if (!a.is_real() && !b.is_real()) return of_integers(symbol, a.integer(), b.integer());
    const double x = a.real(), y = b.real();
    if (symbol == "+") return x + y;
    if (symbol == "-") return x - y;
    if (symbol == "*") return x * y;
    if (symbol == "**") return power_of(x, y);
    if (y == 0) throw TemplateError("division by zero");
    if (symbol == "/") return x / y;
    return symbol == "//" ? quotient_of(x, y) : remainder_of(x, y);
  }
  if (symbol == "+" && a.is_text() && b.is_text()) {
    Text out = a.text();
    out.append(b.text());
    return out;
  }
  const auto repeats = [](const Value& v) { return v.is_list(ListKind::list) || v.is_list(ListKind::tuple); };
  if (symbol == "+" && repeats(a) && repeats(b) && a.list_kind() == b.list_kind()) {
    List out = a.list();
    out.insert(out.end(), b.list().begin(), b.list().end());
    return Value(std::move(out), a.list_kind());
  }
  if (symbol == "*" && (a.is_text() || repeats(a)) && b.is_int()) return times(a, b.integer());
  if (symbol == "*" && a.is_int() && (b.is_text() || repeats(b))) return times(b, a.integer());
  throw TemplateError(cat("cannot compute ", a.type_name(), " ", symbol, " ", b.type_name()));
}

namespace {

// Python's `is`, for operands for which its result does not depend on the memory of values.
bool same(const Value& a, const Value& b) {
  for (const auto test : {&Value::is_none, &Value::is_bool}) {
    if ((a.*test)() || (b.*test)()) return (a.*test)() && (b.*test)() && equal(a, b);
  }
  throw TemplateError(cat("sameas of ", a.type_name(), " and ", b.type_name(), " is not supported"));
}

}  // namespace

Test find_test(const std::string& name) {
  using V = const Value&;
  using A = const Arguments&;
  static const auto other = [](A arguments) -> V {
    if (arguments.positional.empty()) throw TemplateError("missing operand of a test");
    return arguments.positional[0];
  };
  static const std::map<std::string, Test> kTests = {
      {"defined", {"", [](V v, A) { return !v.is_undefined(); }}},
      {"undefined", {"", [](V v, A) { return v.is_undefined(); }}},
      {"none", {"", [](V v, A) { return v.is_none(); }}},
      {"string", {"", [](V v, A) { return v.is_text(); }}},
      {"mapping", {"", [](V v, A) { return v.is_mapping(); }}},
      {"sequence", {"", [](V v, A) { return v.is_undefined() || v.is_text() || v.is_sequence() || v.is_mapping(); }}},
      {"iterable", {"", [](V v, A) { return v.is_text() || v.is_list() || v.is_mapping() || v.is_undefined(); }}},
      {"number", {"", [](V v, A) { return v.is_number(); }}},
      {"integer", {"", [](V v, A) { return v.is_int() || v.is_large(); }}},
      {"float", {"", [](V v, A) { return v.is_real(); }}},
      {"boolean", {"", [](V v, A) { return v.is_bool(); }}},
      {"true", {"", [](V v, A) { return v.is_bool() && v.truth(); }}},
      {"false", {"", [](V v, A) { return v.is_bool() && !v.truth(); }}},
      {"callable", {"", [](V v, A) { return v.is_function() || v.is_undefined(); }}},
      {"odd", {"", [](V v, A) { return v.integer() % 2 != 0; }}},
      {"even", {"", [](V v, A) { return v.integer() % 2 == 0; }}},
      {"divisibleby",
       {"/other", [](V v, A a) { return of_integers("%", v.integer(), other(a).integer()).integer() == 0; }}},
      {"equalto", {"/other", [](V v, A a) { return equal(v, other(a)); }}},
      {"eq", {"/other", [](V v, A a) { return equal(v, other(a)); }}},
      {"==", {"/other", [](V v, A a) { return equal(v, other(a)); }}},
      {"sameas", {"/other", [](V v, A a) { return same(v, other(a)); }}},
      {"ne", {"/other", [](V v, A a) { return !equal(v, other(a)); }}},
      {"!=", {"/other", [](V v, A a) { return !equal(v, other(a)); }}},
      {"lt", {"/other", [](V v, A a) { return compare(v, other(a)) < 0; }}},
      {"le", {"/other", [](V v, A a) { return compare(v, other(a)) <= 0; }}},
      {"gt", {"/other", [](V v, A a) { return compare(v, other(a)) > 0; }}},
      {"ge", {"/other", [](V v, A a) { return compare(v, other(a)) >= 0; }}},
      {"in", {"/other", [](V v, A a) { return contains(other(a), v); }}},
  };
  const auto found = kTests.find(name);
  if (found == kTests.end()) return {};
  Test test = found->second;
  test.name = name;
  return test;
}

void set_functions(Context& context) {
  context.set("range", Function([](const Arguments& arguments) -> Value {
                check_arguments(arguments, "/start /stop /step", "range");
                std::vector<std::int64_t> given;
                for (const Value& value : arguments.positional) given.push_back(value.integer());
                if (given.empty() || given.size() > 3) throw TemplateError("range takes one to three arguments");
                const std::int64_t from = given.size() > 1 ? given[0] : 0, to = given.size() > 1 ? given[1] : given[0];
                const std::int64_t step = given.size() > 2 ? given[2] : 1;
                if (step == 0) throw TemplateError("range step is zero");
                List out;
                for (std::int64_t i = from; step > 0 ? i < to : i > to; i += step) {
                  out.emplace_back(i);
                  if (out.size() > static_cast<std::size_t>(100000)) throw TemplateError("range too long");
                }
                const std::string by = step == 1 ? "" : cat(", ", step);
                return Value(std::move(out), ListKind::range, cat("range(", from, ", ", to, by, ")"));
              }));
  const auto dict_of = [](const Arguments& arguments, bool is_namespace) {
    Dict dict;
    for (const Value& value : arguments.positional) {
      for (const auto& [key, item] : value.dict().items) dict.set(key, item);
    }
    for (const auto& [key, value] : arguments.named) dict.set(key, value);
    dict.is_namespace = is_namespace;
    for (const auto& [key, value] : dict.items) {
      if (is_namespace && key.starts_with('_')) throw TemplateError(cat("'", key, "' is not supported"));
    }
    return dict;
  };
  context.set("namespace", Function([=](const Arguments& arguments) -> Value { return dict_of(arguments, true); }));
  context.set("dict", Function([=](const Arguments& arguments) -> Value { return dict_of(arguments, false); }));
  context.set("raise_exception", Function([](const Arguments& arguments) -> Value {
                check_arguments(arguments, "message", "raise_exception");
                const Value* what = arguments.get(0, "message");
                throw TemplateError(what ? what->str().bytes : "the template rejects this conversation");
              }));
}

}  // namespace hawser::text::chat
