// `Value`: a value of a chat template, with Python's types and semantics as in Jinja. Internal
// to chat/, except for building values.
//
// A `Text` records which of its bytes come from which message (marks). Concatenation, slicing, stripping and other
// operations keep the marks, so a rendered conversation contains the position of each message's content.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace hawser::text::chat {

// Error in a template or while rendering it. `line`: line of the template, 0 if unknown.
class TemplateError : public std::runtime_error {
 public:
  explicit TemplateError(const std::string& what, int at_line = 0) : std::runtime_error(what), line(at_line) {}
  int line;
};

struct Mark {
  std::size_t begin = 0, end = 0;  // bytes; may be empty
  int message = 0;
  bool is_content = false;  // whether it is of the message's content, not of its thoughts or calls
  // Of a name or an id, which a template may write again in another message: the number of this text. Only the first
  // mark of a number counts.
  std::optional<int> name = {};

  // The same mark at other bytes.
  Mark at(std::size_t from, std::size_t until) const { return {from, until, message, is_content, name}; }
};

// Limits on the values of a template, which bound its memory and time: bytes of a text, or of a list or dict with its
// contents, and nesting depth of lists and dicts. TemplateError above them.
inline constexpr std::size_t kMaxBytes = std::size_t{64} << 20;
inline constexpr int kDeepestValue = 200;

struct Text {
  std::string bytes;
  std::vector<Mark> marks;

  void append(const Text& other);
  Text part(std::size_t begin, std::size_t end) const;
  // `changed` as the result of an operation that does not keep positions: all of it gets the message of the first mark.
  Text remade(std::string changed) const;
};

class Value;
struct Undefined {
  std::string name;
};
struct None {};
// An integer beyond 64 bits: it can be written and compared for equality, but not calculated with.
struct LargeInteger {
  std::string digits;
};
using List = std::vector<Value>;
// Python's type of a List. A view is the result of items(), keys() or values(). A generator is the result of `map`,
// `select` and others: always true, without length, and read once.
enum class ListKind { list, tuple, range, view, generator };
struct Dict {
  std::vector<std::pair<std::string, Value>> items;  // in insertion order
  bool is_namespace = false, is_loop = false;        // objects with fields, not dicts of Python

  const Value* find(std::string_view key) const;
  void set(const std::string& key, Value value);
};
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // The argument at position `place` or named `name`; null if it is not given.
  const Value* get(std::size_t place, std::string_view name) const;
};
using Function = std::function<Value(const Arguments&)>;

class Value {
 public:
  Value() : data_(Undefined{}) {}
  Value(Undefined undefined) : data_(std::move(undefined)) {}
  Value(None) : data_(None{}) {}
  Value(bool value) : data_(value) {}
  Value(std::int64_t value) : data_(value) {}
  Value(double value) : data_(value) {}
  Value(LargeInteger value) : data_(std::make_shared<const LargeInteger>(std::move(value))) {}
  Value(Text text);
  Value(std::string text) : Value(Text{std::move(text), {}}) {}
  Value(const char* text) : Value(std::string(text)) {}
  // `shown`: repr of a range, type name of a view.
  Value(List list, ListKind kind = ListKind::list, std::string shown = "");
  Value(Dict dict);
  Value(Function function) : data_(std::make_shared<const Function>(std::move(function))) {}

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_int() const { return std::holds_alternative<std::int64_t>(data_); }
  bool is_real() const { return std::holds_alternative<double>(data_); }
  bool is_large() const { return std::holds_alternative<LargePointer>(data_); }
  bool is_number() const { return is_int() || is_real() || is_bool() || is_large(); }
  bool is_text() const { return std::holds_alternative<TextPointer>(data_); }
  bool is_list() const { return std::holds_alternative<ListPointer>(data_); }
  bool is_list(ListKind kind) const { return is_list() && std::get<ListPointer>(data_)->kind == kind; }
  // Whether it is a sequence of Python: has a length and can be indexed.
  bool is_sequence() const { return is_list() && !is_list(ListKind::view) && !is_list(ListKind::generator); }
  // A dict of Python: neither a namespace nor a loop.
  bool is_mapping() const { return is_dict() && !dict().is_namespace && !dict().is_loop; }
  // Whether it is the result of filter `safe` (Markup in Python), which escapes the texts that it is combined with.
  bool is_safe() const { return safe_; }
  // The text as the result of filter `safe`.
  static Value safe(Text text);
  // The contents of a message, null or a list of parts, as a value whose str() throws TemplateError.
  static Value not_text(Value contents);
  bool is_not_text() const { return not_text_; }
  bool is_dict() const { return std::holds_alternative<DictPointer>(data_); }
  bool is_function() const { return std::holds_alternative<FunctionPointer>(data_); }

  // Each throws TemplateError if the value has another type.
  const Text& text() const;
  const List& list() const;  // not of a generator
  ListKind list_kind() const;
  List take_items() const;  // of a list of any kind. TemplateError for a generator that was read before.
  Dict& dict() const;       // shared: a change is visible in all copies of the value
  const Function& function() const;
  std::int64_t integer() const;
  double real() const;                // of any number that is not large
  const std::string& digits() const;  // of a large one

  const std::string& undefined_name() const { return std::get<Undefined>(data_).name; }
  const char* type_name() const;  // Python's
  bool truth() const;
  Text str() const;          // Python's str(); empty for undefined. TemplateError for a not_text value
  std::string repr() const;  // Python's repr()

  // Throws TemplateError if no list, dict or namespace may contain this value: it nests too deeply, or it is a
  // namespace, which could then contain itself.
  void check_can_be_held() const;
  // Approximate number of bytes read by an operation on a full text or on each item of a list.
  std::size_t bytes() const;

 private:
  // Size and depth of a list or dict with its contents.
  struct Extent {
    std::size_t bytes = 0;
    int depth = 0;
    void add(const Value& item);
  };
  struct HeldList {
    List list;
    Extent extent;
    ListKind kind = ListKind::list;
    std::string shown = {};
    mutable bool taken = false;
  };
  struct HeldDict {
    Dict dict;
    Extent extent;  // at construction; a namespace grows later
  };
  Extent extent() const;

  using TextPointer = std::shared_ptr<const Text>;
  using ListPointer = std::shared_ptr<const HeldList>;
  using DictPointer = std::shared_ptr<HeldDict>;
  using FunctionPointer = std::shared_ptr<const Function>;
  using LargePointer = std::shared_ptr<const LargeInteger>;
  std::variant<Undefined, None, bool, std::int64_t, double, TextPointer, ListPointer, DictPointer, FunctionPointer,
               LargePointer>
      data_;
  bool safe_ = false, not_text_ = false;
};

// Throws TemplateError for the result of filter `safe`, since what Python escapes is not escaped here. `where` and
// `name` are for the message: "with method", "strip".
void reject_safe(const Value& value, std::string_view where, std::string_view name = "");

bool equal(const Value& a, const Value& b);
// Negative, zero or positive, for two numbers or two texts. TemplateError for other types.
int compare(const Value& a, const Value& b);
bool contains(const Value& container, const Value& item);
// Items of a list, keys of a dict, characters of a text; empty for undefined. TemplateError for other types.
List iterate(const Value& value);

std::string format_real(double value);  // Python's repr of a float
// json.dumps as transformers configures it for templates: does not escape non-ASCII characters. indent < 0: one line.
Text to_json(const Value& value, int indent = -1);

// Byte offsets of the characters of a text, then its length.
std::vector<std::size_t> character_starts(std::string_view bytes);

// Copy of a message in which every text, except those under the key "role", is marked. Those under "name", "id" and
// "tool_call_id" get Mark::name, from `names` on.
Value marked(const Value& message, int number, int& names);

}  // namespace hawser::text::chat
