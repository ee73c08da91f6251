// What a chat template works with: Python's values, as Jinja sees them. Internal to chat/, but for building them.
//
// A text knows which of its bytes came from which message (marks), through concatenation, slicing, stripping and the
// like, so that a rendered conversation says where each message's content stands.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace hawser::data::chat {

// A template that cannot go on; `line` is the template's, 0 where it is not known.
class TemplateError : public std::runtime_error {
 public:
  explicit TemplateError(const std::string& what, int at_line = 0) : std::runtime_error(what), line(at_line) {}
  int line;
};

struct Mark {
  std::size_t begin = 0, end = 0;  // bytes; may be empty
  int message = 0;
};

// What a template may make, so that none takes all memory or never comes to an end: bytes of a text, or of a list or
// dict written out, and how deep those nest. TemplateError beyond.
inline constexpr std::size_t kMaxBytes = std::size_t{64} << 20;
inline constexpr int kDeepestValue = 200;

struct Text {
  std::string bytes;
  std::vector<Mark> marks;

  void append(const Text& other);
  Text part(std::size_t begin, std::size_t end) const;
  // `bytes` made of this text in a way that leaves no places: all of them are its first message's.
  Text remade(std::string changed) const;
};

class Value;
struct Undefined {
  std::string name;
};
struct None {};
using List = std::vector<Value>;
struct Dict {
  std::vector<std::pair<std::string, Value>> items;  // in order of insertion
  bool is_namespace = false;

  const Value* find(std::string_view key) const;
  void set(const std::string& key, Value value);
};
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // The argument at a place or of a name; null when it was not given.
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
  Value(Text text);
  Value(std::string text) : Value(Text{std::move(text), {}}) {}
  Value(const char* text) : Value(std::string(text)) {}
  Value(List list);
  Value(Dict dict);
  Value(Function function) : data_(std::make_shared<const Function>(std::move(function))) {}

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_int() const { return std::holds_alternative<std::int64_t>(data_); }
  bool is_real() const { return std::holds_alternative<double>(data_); }
  bool is_number() const { return is_int() || is_real() || is_bool(); }
  bool is_text() const { return std::holds_alternative<TextPointer>(data_); }
  bool is_list() const { return std::holds_alternative<ListPointer>(data_); }
  bool is_dict() const { return std::holds_alternative<DictPointer>(data_); }
  bool is_function() const { return std::holds_alternative<FunctionPointer>(data_); }

  // Each throws TemplateError when the value is of another kind.
  const Text& text() const;
  const List& list() const;
  Dict& dict() const;  // shared: changing it is seen by all who have it
  const Function& function() const;
  std::int64_t integer() const;
  double real() const;  // of any number

  const std::string& undefined_name() const { return std::get<Undefined>(data_).name; }
  const char* type_name() const;  // Python's
  bool truth() const;
  Text str() const;          // Python's str(); nothing for what is undefined
  std::string repr() const;  // Python's repr()

  // Throws where no list, dict or namespace may hold this value: it nests too deeply, or is a namespace, which could
  // come to hold itself.
  void check_can_be_held() const;
  // About how many bytes an operation goes through that looks at all of a text, or at each item of a list.
  std::size_t bytes() const;

 private:
  // Of a list or dict with all that is in it.
  struct Extent {
    std::size_t bytes = 0;
    int depth = 0;
    void add(const Value& item);
  };
  struct HeldList {
    List list;
    Extent extent;
  };
  struct HeldDict {
    Dict dict;
    Extent extent;  // as it was made: a namespace grows
  };
  Extent extent() const;

  using TextPointer = std::shared_ptr<const Text>;
  using ListPointer = std::shared_ptr<const HeldList>;
  using DictPointer = std::shared_ptr<HeldDict>;
  using FunctionPointer = std::shared_ptr<const Function>;
  std::variant<Undefined, None, bool, std::int64_t, double, TextPointer, ListPointer, DictPointer, FunctionPointer>
      data_;
};

bool equal(const Value& a, const Value& b);
// Below zero, zero, above: numbers and texts; TemplateError for anything else.
int compare(const Value& a, const Value& b);
bool contains(const Value& container, const Value& item);
// The items of a list, the keys of a dict, the characters of a text, nothing of what is undefined.
List iterate(const Value& value);

std::string format_real(double value);  // Python's repr of a float
// json.dumps as transformers sets it for templates: characters beyond ASCII as they are. indent < 0: on one line.
Text to_json(const Value& value, int indent = -1);

// Byte offsets of a text's characters, and its end.
std::vector<std::size_t> character_starts(std::string_view bytes);

// Every text below `value` but for its "role" marked as message `message`'s.
Value marked(const Value& value, int message);

}  // namespace hawser::data::chat
