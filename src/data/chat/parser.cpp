#include <charconv>
#include <set>

#include "base/cat.h"
#include "data/chat/lexer.h"
#include "data/chat/program.h"

namespace hawser::data::chat {
namespace {

constexpr int kDeepest = 150;

// Parts of an expression that stand in parentheses behind a name.
struct Call {
  std::vector<Expression> positional;
  std::vector<std::pair<std::string, Expression>> named;

  Arguments evaluate(Context& context) const {
    Arguments arguments;
    for (const Expression& expression : positional) arguments.positional.push_back(expression(context));
    for (const auto& [name, expression] : named) arguments.named.emplace_back(name, expression(context));
    return arguments;
  }
};

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)) {}

  Statement program() {
    Statement body = block({});
    if (peek().kind != TokenKind::end) fail(cat("unexpected '", peek(1).text, "'"));
    return body;
  }
  bool has_generations() const { return generations_; }

 private:
  // Bounds how deep expressions and blocks nest: they are gone through recursively.
  struct Depth {
    explicit Depth(Parser& of) : parser(of) {
      if (++parser.depth_ > kDeepest) parser.fail("nested too deeply");
    }
    ~Depth() { --parser.depth_; }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;
    Parser& parser;
  };

  const Token& peek(std::size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  const Token& take() {
    const Token& token = peek();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  bool is_symbol(const char* text, std::size_t ahead = 0) const {
    return peek(ahead).kind == TokenKind::symbol && peek(ahead).text == text;
  }
  bool is_name(const char* text, std::size_t ahead = 0) const {
    return peek(ahead).kind == TokenKind::name && peek(ahead).text == text;
  }
  bool take_symbol(const char* text) { return is_symbol(text) && (take(), true); }
  bool take_name(const char* text) { return is_name(text) && (take(), true); }
  void need_symbol(const char* text) {
    if (!take_symbol(text)) fail(cat("expected '", text, "', got '", peek().text, "'"));
  }
  std::string need_any_name() {
    if (peek().kind != TokenKind::name) fail(cat("expected a name, got '", peek().text, "'"));
    return take().text;
  }
  void need_end_block() {
    if (peek().kind != TokenKind::end_block) fail(cat("expected the end of the block, got '", peek().text, "'"));
    take();
  }
  [[noreturn]] void fail(const std::string& what) const { throw TemplateError(what, peek().line); }

  // An expression that says its line when it cannot go on.
  static Expression placed(Expression expression, int line) {
    return [expression = std::move(expression), line](Context& context) {
      try {
        return expression(context);
      } catch (TemplateError& error) {
        if (error.line == 0) error.line = line;
        throw;
      }
    };
  }

  // Statements up to a block that begins with one of `ends`, which is left to be read.
  Statement block(const std::set<std::string>& ends) {
    const Depth depth(*this);
    std::vector<Statement> body;
    while (peek().kind != TokenKind::end) {
      if (peek().kind == TokenKind::begin_block && ends.contains(peek(1).text)) break;
      body.push_back(statement());
    }
    return [body = std::move(body)](Context& context) {
      for (const Statement& one : body) {
        if (const Flow flow = one(context); flow != Flow::on) return flow;
      }
      return Flow::on;
    };
  }

  void need_block(const char* name) {
    if (peek().kind != TokenKind::begin_block || !is_name(name, 1)) fail(cat("expected {% ", name, " %}"));
    take();
    take();
  }

  Statement statement() {
    const Token token = take();
    if (token.kind == TokenKind::text) {
      return [text = Text{token.text, {}}](Context& context) {
        context.write(text);
        return Flow::on;
      };
    }
    if (token.kind == TokenKind::begin_output) {
      Expression value = placed(expression(true), token.line);
      if (peek().kind != TokenKind::end_output) fail(cat("expected '}}', got '", peek().text, "'"));
      take();
      return [value = std::move(value)](Context& context) {
        context.write(value(context).str());
        return Flow::on;
      };
    }
    const std::string name = need_any_name();
    if (name == "if") return if_statement();
    if (name == "for") return for_statement(token.line);
    if (name == "set") return set_statement(token.line);
    if (name == "macro") return macro_statement();
    if (name == "generation") return generation_statement();
    if (name == "break" || name == "continue") {
      if (loops_ == 0) fail(cat("{% ", name, " %} outside a loop"));
      need_end_block();
      return [flow = name == "break" ? Flow::stop : Flow::next](Context&) { return flow; };
    }
    if (name.starts_with("end") || name.starts_with("el")) fail(cat("unexpected '", name, "'"));
    fail(cat("{% ", name, " %} is not supported"));
  }

  Statement if_statement() {
    std::vector<std::pair<Expression, Statement>> arms;
    Statement otherwise;
    const int line = peek().line;
    Expression condition = placed(expression(true), line);
    while (true) {
      need_end_block();
      Statement body = block({"elif", "else", "endif"});
      arms.emplace_back(std::move(condition), std::move(body));
      if (peek().kind != TokenKind::begin_block) fail("{% if %} without {% endif %}");
      take();
      if (take_name("elif")) {
        const int at = peek().line;
        condition = placed(expression(true), at);
        continue;
      }
      if (take_name("else")) {
        need_end_block();
        otherwise = block({"endif"});
        need_block("endif");
      } else {
        take();  // endif
      }
      need_end_block();
      break;
    }
    return [arms = std::move(arms), otherwise = std::move(otherwise)](Context& context) {
      for (const auto& [when, body] : arms) {
        if (when(context).truth()) return body(context);
      }
      return otherwise ? otherwise(context) : Flow::on;
    };
  }

  std::vector<std::string> targets() {
    std::vector<std::string> names;
    const bool parenthesis = take_symbol("(");
    do {
      names.push_back(need_any_name());
    } while (take_symbol(","));
    if (parenthesis) need_symbol(")");
    return names;
  }

  static void assign(Context& context, const std::vector<std::string>& names, const Value& value) {
    if (names.size() == 1) return context.set(names[0], value);
    const List items = iterate(value);
    if (items.size() != names.size()) {
      throw TemplateError(cat("cannot take apart ", items.size(), " values into ", names.size()));
    }
    for (std::size_t i = 0; i < names.size(); ++i) context.set(names[i], items[i]);
  }

  Statement for_statement(int line) {
    std::vector<std::string> names = targets();
    if (!take_name("in")) fail("expected 'in'");
    Expression over = placed(expression(false), line);
    Expression filter;
    if (take_name("if")) filter = placed(expression(true), line);
    if (is_name("recursive")) fail("a recursive loop is not supported");
    need_end_block();
    ++loops_;
    Statement body = block({"endfor", "else"});
    --loops_;
    Statement otherwise;
    if (peek().kind == TokenKind::begin_block && is_name("else", 1)) {
      take();
      take();
      need_end_block();
      otherwise = block({"endfor"});
    }
    need_block("endfor");
    need_end_block();
    return [=](Context& context) {
      List items = iterate(over(context));
      if (filter) {
        List kept;
        for (Value& item : items) {
          context.push();
          assign(context, names, item);
          const bool keep = filter(context).truth();
          context.pop();
          if (keep) kept.push_back(std::move(item));
        }
        items = std::move(kept);
      }
      if (items.empty()) return otherwise ? otherwise(context) : Flow::on;
      for (std::size_t i = 0; i < items.size(); ++i) {
        context.count_step();
        context.push();
        context.set("loop", loop_variable(items, i));
        assign(context, names, items[i]);
        const Flow flow = body(context);
        context.pop();
        if (flow == Flow::stop) break;
      }
      return Flow::on;
    };
  }

  static Value loop_variable(const List& items, std::size_t i) {
    const auto index = static_cast<std::int64_t>(i), count = static_cast<std::int64_t>(items.size());
    Dict loop;
    loop.items = {{"index", index + 1},
                  {"index0", index},
                  {"revindex", count - index},
                  {"revindex0", count - index - 1},
                  {"first", i == 0},
                  {"last", index + 1 == count},
                  {"length", count},
                  {"previtem", i > 0 ? items[i - 1] : Value(Undefined{"loop.previtem"})},
                  {"nextitem", index + 1 < count ? items[i + 1] : Value(Undefined{"loop.nextitem"})},
                  {"cycle", Function([i](const Arguments& arguments) -> Value {
                     if (arguments.positional.empty()) throw TemplateError("loop.cycle without values");
                     return arguments.positional[i % arguments.positional.size()];
                   })}};
    return loop;
  }

  Statement set_statement(int line) {
    if (peek().kind == TokenKind::name && is_symbol(".", 1)) {
      const std::string object = need_any_name();
      take();
      const std::string field = need_any_name();
      need_symbol("=");
      Expression value = placed(expression(true), line);
      need_end_block();
      return [=](Context& context) {
        const Value target = context.get(object);
        if (!target.is_dict() || !target.dict().is_namespace) {
          throw TemplateError(cat("'", object, "' is no namespace: its fields cannot be set"), line);
        }
        target.dict().set(field, value(context));
        return Flow::on;
      };
    }
    const std::vector<std::string> names = targets();
    if (take_symbol("=")) {
      Expression value = placed(tuple(), line);
      need_end_block();
      return [=](Context& context) {
        assign(context, names, value(context));
        return Flow::on;
      };
    }
    if (is_symbol("|")) fail("a filter over {% set %} is not supported");
    need_end_block();
    Statement body = block({"endset"});
    need_block("endset");
    need_end_block();
    return [=](Context& context) {
      assign(context, names, captured(context, body));
      return Flow::on;
    };
  }

  static Value captured(Context& context, const Statement& body) {
    Text before = context.take_output();
    const bool was = std::exchange(context.capturing, true);
    body(context);
    context.capturing = was;
    Text text = context.take_output();
    context.put_output(std::move(before));
    return text;
  }

  Statement macro_statement() {
    const std::string name = need_any_name();
    need_symbol("(");
    std::vector<std::string> names;
    std::vector<Expression> defaults;
    while (!take_symbol(")")) {
      names.push_back(need_any_name());
      defaults.push_back(take_symbol("=") ? expression(true) : Expression());
      if (!is_symbol(")")) need_symbol(",");
    }
    need_end_block();
    const int loops = std::exchange(loops_, 0);
    Statement body = block({"endmacro"});
    loops_ = loops;
    need_block("endmacro");
    need_end_block();
    return [=](Context& context) {
      Context* const at = &context;
      context.set(name, Function([=](const Arguments& arguments) -> Value {
                    at->count_step();
                    auto scopes = at->enter();
                    for (std::size_t i = 0; i < names.size(); ++i) {
                      const Value* given = arguments.get(i, names[i]);
                      at->set(names[i], given ? *given : defaults[i] ? defaults[i](*at) : Value(Undefined{names[i]}));
                    }
                    const Value text = captured(*at, body);
                    at->leave(std::move(scopes));
                    return text;
                  }));
      return Flow::on;
    };
  }

  // What the model is to learn, as the template itself says it.
  Statement generation_statement() {
    generations_ = true;
    need_end_block();
    Statement body = block({"endgeneration"});
    need_block("endgeneration");
    need_end_block();
    return [body = std::move(body)](Context& context) {
      const std::size_t begin = context.written();
      const Flow flow = body(context);
      if (context.capturing) throw TemplateError("{% generation %} inside {% set %} or {% macro %} is not supported");
      context.generations.emplace_back(begin, context.written());
      return flow;
    };
  }

  // ---- expressions, loosest first

  Expression expression(bool with_condition) {
    const Depth depth(*this);
    Expression value = or_expression();
    while (with_condition && is_name("if")) {
      take();
      Expression condition = or_expression();
      Expression otherwise;
      if (take_name("else")) otherwise = expression(true);
      value = [=](Context& context) {
        if (condition(context).truth()) return value(context);
        return otherwise ? otherwise(context) : Value();
      };
    }
    return value;
  }

  // One value, or several with commas between.
  Expression tuple() {
    Expression first = expression(true);
    if (!is_symbol(",")) return first;
    std::vector<Expression> items{std::move(first)};
    while (take_symbol(",")) items.push_back(expression(true));
    return list_of(std::move(items));
  }

  Expression or_expression() {
    Expression left = and_expression();
    while (take_name("or")) {
      Expression right = and_expression();
      left = [=](Context& context) {
        const Value value = left(context);
        return value.truth() ? value : right(context);
      };
    }
    return left;
  }

  Expression and_expression() {
    Expression left = not_expression();
    while (take_name("and")) {
      Expression right = not_expression();
      left = [=](Context& context) {
        const Value value = left(context);
        return value.truth() ? right(context) : value;
      };
    }
    return left;
  }

  Expression not_expression() {
    const Depth depth(*this);
    if (take_name("not")) {
      Expression value = not_expression();
      return [=](Context& context) { return Value(!value(context).truth()); };
    }
    return comparison();
  }

  Expression comparison() {
    Expression first = sum();
    std::vector<std::pair<std::string, Expression>> rest;
    while (true) {
      std::string symbol;
      for (const char* one : {"==", "!=", "<=", ">=", "<", ">"}) {
        if (is_symbol(one)) symbol = one;
      }
      if (!symbol.empty()) {
        take();
      } else if (is_name("in")) {
        take();
        symbol = "in";
      } else if (is_name("not") && is_name("in", 1)) {
        take();
        take();
        symbol = "not in";
      } else {
        break;
      }
      rest.emplace_back(symbol, sum());
    }
    if (rest.empty()) return first;
    return [=](Context& context) {
      Value left = first(context);
      for (const auto& [symbol, expression] : rest) {
        Value right = expression(context);
        if (!holds(symbol, left, right)) return Value(false);
        left = std::move(right);
      }
      return Value(true);
    };
  }

  static bool holds(const std::string& symbol, const Value& a, const Value& b) {
    if (symbol == "==") return equal(a, b);
    if (symbol == "!=") return !equal(a, b);
    if (symbol == "in") return contains(b, a);
    if (symbol == "not in") return !contains(b, a);
    const int order = compare(a, b);
    return symbol == "<" ? order < 0 : symbol == "<=" ? order <= 0 : symbol == ">" ? order > 0 : order >= 0;
  }

  Expression binary(Expression (Parser::*next)(), std::initializer_list<const char*> symbols) {
    Expression left = (this->*next)();
    while (true) {
      std::string symbol;
      for (const char* one : symbols) {
        if (is_symbol(one)) symbol = one;
      }
      if (symbol.empty()) return left;
      take();
      Expression right = (this->*next)();
      left = [=](Context& context) {
        const Value a = left(context);
        return arithmetic(symbol, a, right(context));
      };
    }
  }

  Expression sum() { return binary(&Parser::joined, {"+", "-"}); }

  Expression joined() {
    Expression left = product();
    while (take_symbol("~")) {
      Expression right = product();
      left = [=](Context& context) {
        Text text = left(context).str();
        text.append(right(context).str());
        return Value(std::move(text));
      };
    }
    return left;
  }

  Expression product() { return binary(&Parser::power, {"*", "/", "//", "%"}); }

  Expression power() {
    Expression left = unary(true);
    while (take_symbol("**")) {
      Expression right = unary(true);
      left = [=](Context& context) {
        const Value a = left(context);
        return arithmetic("**", a, right(context));
      };
    }
    return left;
  }

  Expression unary(bool with_filter) {
    const Depth depth(*this);
    Expression value;
    if (take_symbol("-")) {
      Expression of = unary(false);
      value = [=](Context& context) { return arithmetic("-", Value(std::int64_t{0}), of(context)); };
    } else if (take_symbol("+")) {
      value = unary(false);
    } else {
      value = primary();
    }
    value = postfix(std::move(value));
    return with_filter ? filtered(std::move(value)) : value;
  }

  Expression constant(Value value) {
    return [value = std::move(value)](Context&) { return value; };
  }

  Expression primary() {
    const Token token = take();
    switch (token.kind) {
      case TokenKind::name: {
        if (token.text == "true" || token.text == "True") return constant(true);
        if (token.text == "false" || token.text == "False") return constant(false);
        if (token.text == "none" || token.text == "None") return constant(None{});
        static const std::set<std::string> kWords = {"if", "else", "elif", "for", "in", "is", "and", "or", "not"};
        if (kWords.contains(token.text)) fail(cat("unexpected '", token.text, "'"));
        return [name = token.text](Context& context) { return context.get(name); };
      }
      case TokenKind::string: {
        std::string text = token.text;
        while (peek().kind == TokenKind::string) text += take().text;
        return constant(std::move(text));
      }
      case TokenKind::integer: {
        std::int64_t value = 0;
        const char* const end = token.text.data() + token.text.size();
        if (std::from_chars(token.text.data(), end, value).ec != std::errc()) fail("a number that is too large");
        return constant(value);
      }
      case TokenKind::real: {
        double value = 0;
        std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
        return constant(value);
      }
      case TokenKind::symbol:
        if (token.text == "(") return parenthesis();
        if (token.text == "[") return list_of(items_until("]"));
        if (token.text == "{") return dict_literal();
        break;
      default:
        break;
    }
    throw TemplateError(token.text.empty() ? "an expression is missing" : cat("unexpected '", token.text, "'"),
                        token.line);
  }

  Expression parenthesis() {
    if (take_symbol(")")) return constant(List{});
    Expression first = expression(true);
    if (take_symbol(")")) return first;
    need_symbol(",");
    std::vector<Expression> items = items_until(")");
    items.insert(items.begin(), std::move(first));
    return list_of(std::move(items));
  }

  std::vector<Expression> items_until(const char* end) {
    std::vector<Expression> items;
    while (!take_symbol(end)) {
      items.push_back(expression(true));
      if (!is_symbol(end)) need_symbol(",");
    }
    return items;
  }

  static Expression list_of(std::vector<Expression> items) {
    return [items = std::move(items)](Context& context) {
      List list;
      for (const Expression& item : items) list.push_back(item(context));
      return Value(std::move(list));
    };
  }

  Expression dict_literal() {
    std::vector<std::pair<Expression, Expression>> items;
    while (!take_symbol("}")) {
      Expression key = expression(true);
      need_symbol(":");
      items.emplace_back(std::move(key), expression(true));
      if (!is_symbol("}")) need_symbol(",");
    }
    return [items = std::move(items)](Context& context) {
      Dict dict;
      for (const auto& [key, value] : items) dict.set(key(context).text().bytes, value(context));
      return Value(std::move(dict));
    };
  }

  Call call() {
    Call out;
    while (!take_symbol(")")) {
      if (is_symbol("*") || is_symbol("**")) fail("arguments by * are not supported");
      if (peek().kind == TokenKind::name && is_symbol("=", 1)) {
        std::string name = need_any_name();
        take();
        out.named.emplace_back(std::move(name), expression(true));
      } else {
        out.positional.push_back(expression(true));
      }
      if (!is_symbol(")")) need_symbol(",");
    }
    return out;
  }

  Expression postfix(Expression value) {
    while (true) {
      const int line = peek().line;
      if (take_symbol(".")) {
        if (peek().kind == TokenKind::integer) {
          Expression index = primary();
          value = placed([=](Context& context) { return subscript(value(context), index(context)); }, line);
          continue;
        }
        const std::string name = need_any_name();
        if (take_symbol("(")) {
          value = placed(
              [=, arguments = call()](Context& context) { return method(context, value(context), name, arguments); },
              line);
        } else {
          value = placed([=](Context& context) { return attribute(value(context), name); }, line);
        }
      } else if (take_symbol("[")) {
        value = placed(brackets(std::move(value)), line);
      } else if (take_symbol("(")) {
        value = placed(
            [=, arguments = call()](Context& context) {
              const Value function = value(context);
              return function.function()(arguments.evaluate(context));
            },
            line);
      } else {
        return value;
      }
    }
  }

  static Value method(Context& context, const Value& object, const std::string& name, const Call& call) {
    const Arguments arguments = call.evaluate(context);
    // A field that can be called: loop.cycle, a function in a namespace.
    if (object.is_dict()) {
      if (const Value* field = object.dict().find(name); field && field->is_function())
        return field->function()(arguments);
    }
    return call_method(object, name, arguments);
  }

  Expression brackets(Expression object) {
    Expression parts[3];
    int part = 0;
    bool is_slice = false;
    while (!take_symbol("]")) {
      if (take_symbol(":")) {
        is_slice = true;
        if (++part > 2) fail("unexpected ':'");
      } else if (!parts[part]) {
        parts[part] = expression(true);
      } else {
        fail(cat("expected ']', got '", peek().text, "'"));
      }
    }
    if (!is_slice) {
      if (!parts[0]) fail("an index is missing");
      return [object = std::move(object), index = parts[0]](Context& context) {
        const Value of = object(context);
        return subscript(of, index(context));
      };
    }
    return [object = std::move(object), from = parts[0], to = parts[1], step = parts[2]](Context& context) {
      const auto given = [&](const Expression& one) { return one ? one(context) : Value(None{}); };
      const Value of = object(context);
      return slice(of, given(from), given(to), given(step));
    };
  }

  // Filters and tests, which bind tighter than any operator.
  Expression filtered(Expression value) {
    while (true) {
      const int line = peek().line;
      if (take_symbol("|")) {
        const std::string name = need_any_name();
        Call arguments;
        if (take_symbol("(")) arguments = call();
        const Filter filter = find_filter(name);
        const bool selecting = is_selecting(name);
        if (!filter && !selecting) throw TemplateError(cat("filter '", name, "' is not supported"), line);
        value = placed(
            [=](Context& context) {
              const Value input = value(context);
              const Arguments given = arguments.evaluate(context);
              return selecting ? select_items(name, input, given) : filter(input, given);
            },
            line);
      } else if (take_name("is")) {
        value = placed(test(std::move(value), line), line);
      } else if (is_symbol("(")) {
        value = postfix(std::move(value));
      } else {
        return value;
      }
    }
  }

  Expression test(Expression value, int line) {
    const bool negated = take_name("not");
    const std::string name = need_any_name();
    Call arguments;
    if (take_symbol("(")) {
      arguments = call();
    } else {
      const Token& next = peek();
      const bool operand =
          next.kind == TokenKind::string || next.kind == TokenKind::integer || next.kind == TokenKind::real ||
          is_symbol("[") || is_symbol("{") ||
          (next.kind == TokenKind::name && next.text != "else" && next.text != "or" && next.text != "and" &&
           next.text != "is" && next.text != "if" && next.text != "in" && next.text != "not");
      if (operand) arguments.positional.push_back(postfix(primary()));
    }
    const ::hawser::data::chat::Test found = find_test(name);
    if (!found) throw TemplateError(cat("test '", name, "' is not supported"), line);
    return [=](Context& context) {
      const Value input = value(context);
      return Value(found(input, arguments.evaluate(context)) != negated);
    };
  }

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0, loops_ = 0;
  bool generations_ = false;
};

}  // namespace

Statement parse_program(std::string_view source, bool& has_generations) {
  Parser parser(source);
  Statement program = parser.program();
  has_generations = parser.has_generations();
  return program;
}

}  // namespace hawser::data::chat
