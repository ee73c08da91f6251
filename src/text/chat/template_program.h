// Parsed templates: closures over a `Context`, and the filters, tests, methods and operators that they call. Internal
// to chat/.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/chat/value.h"

namespace hawser::text::chat {

// State of a rendering: scopes of variables, innermost last, and the output so far.
class Context {
 public:
  using Scope = std::map<std::string, Value>;
  using Scopes = std::vector<std::shared_ptr<Scope>>;
  // Scopes that a macro sees. The macro is a value in one of them, so it does not own them.
  using WeakScopes = std::vector<std::weak_ptr<Scope>>;

  Context() { push(); }

  Value get(const std::string& name) const;
  void set(const std::string& name, Value value) { (*scopes_.back())[name] = std::move(value); }
  void push() { scopes_.push_back(std::make_shared<Scope>()); }
  void pop() { scopes_.pop_back(); }
  WeakScopes visible() const { return {scopes_.begin(), scopes_.end()}; }
  // Enters the body of a macro that was defined where `visible` was. Returns the previous scopes for leave().
  Scopes enter(const WeakScopes& visible);
  void leave(Scopes scopes) {
    --macros_;
    scopes_ = std::move(scopes);
  }

  // A block that is being rendered. Blocks nest on the thread's stack, and macros nest them again: bounds their depth.
  class Level {
   public:
    explicit Level(Context& context) : context_(context) {
      if (++context_.levels_ > kMaxLevels) {
        --context_.levels_;
        throw TemplateError("macros nested too deeply");
      }
    }
    ~Level() { --context_.levels_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Context& context_;
  };

  void write(const Text& text);
  Text take_output() { return std::exchange(output_, {}); }
  void put_output(Text output) { output_ = std::move(output); }
  std::size_t written() const { return output_.bytes.size(); }
  // Counts a loop iteration or a macro call. Throws TemplateError above a limit, so that endless templates stop.
  void count_step();
  // Adds the size of an operand or result of an operator, filter, test or method. Throws TemplateError above a limit.
  void count_work(const Value& value);

  std::vector<std::pair<std::size_t, std::size_t>> generations;  // byte ranges of {% generation %} blocks
  bool capturing = false;

 private:
  Scopes scopes_;
  Text output_;
  std::int64_t steps_ = 0;
  std::size_t work_ = 0;
  static constexpr int kMaxLevels = 600;
  int macros_ = 0, levels_ = 0;
};

using Expression = std::function<Value(Context&)>;
enum class Flow { on, next, stop };  // next: after `continue`; stop: after `break`
using Statement = std::function<Flow(Context&)>;

// Throws TemplateError for an argument of `of` that is not one of `parameters`: names in order, separated by spaces.
// Those that begin with '/' can only be given by position.
void check_arguments(const Arguments& arguments, std::string_view parameters, const std::string& of);

// A filter or test with its parameters, as in check_arguments.
template <class Result>
struct Builtin {
  std::string_view parameters;
  Result (*function)(const Value& input, const Arguments& arguments) = nullptr;
  std::string name = {};

  explicit operator bool() const { return function != nullptr; }
  Result operator()(const Value& input, const Arguments& arguments) const {
    check_arguments(arguments, parameters, name);
    return function(input, arguments);
  }
};
using Filter = Builtin<Value>;
using Test = Builtin<bool>;
// Filters, tests and methods by name. For an unsupported name the first two return a null function and call_method
// throws TemplateError.
Filter find_filter(const std::string& name);
Test find_test(const std::string& name);
Value call_method(const Value& object, const std::string& name, const Arguments& arguments);
// `select`, `reject`, `selectattr`, `rejectattr` and `map`: filters with the name of a test or filter as an argument.
bool is_selecting(const std::string& filter);
Value select_items(const std::string& filter, const Value& input, const Arguments& arguments);

// Whether the object's type in Python has an attribute: such attributes hide keys of a dict in `object.name`.
bool has_python_attribute(const Value& object, const std::string& name);
// The item of a dict, or the field of a namespace or loop; nullopt for other values and without it. Fields of a loop
// that are functions, but `cycle`, compute the value.
std::optional<Value> field(const Value& object, const std::string& name);
Value attribute(const Value& object, const std::string& name);
Value subscript(const Value& object, const Value& index);  // of a text: keys hide attributes
Value slice(const Value& object, const Value& from, const Value& to, const Value& step);
Value arithmetic(const std::string& symbol, const Value& a, const Value& b);

// Defines the functions range, namespace, dict and raise_exception.
void set_functions(Context& context);

// Throws TemplateError for syntax errors and unsupported constructs.
// `has_generations`: set to whether there are {% generation %} blocks.
Statement parse_program(std::string_view source, bool& has_generations);

}  // namespace hawser::text::chat
