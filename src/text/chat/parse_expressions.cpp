#include <charconv>

#include "text/chat/parser.h"

namespace hawser::text::chat {

Expression Parser::expression(bool with_condition) {
  const Depth depth(*this);
  Expression value = or_expression();
  int chain = 0;
  while (with_condition && is_name("if")) {
    take();
    check_chain(chain);
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

Expression Parser::tuple() {
  Expression first = expression(true);
  if (!is_symbol(",")) return first;
  std::vector<Expression> items{std::move(first)};
  while (take_symbol(",")) items.push_back(expression(true));
  return list_of(std::move(items), ListKind::tuple);
}

Expression Parser::or_expression() {
  Expression left = and_expression();
  int chain = 0;
  while (take_name("or")) {
    check_chain(chain);
    Expression right = and_expression();
    left = [=](Context& context) {
      const Value value = left(context);
      return value.truth() ? value : right(context);
    };
  }
  return left;
}

Expression Parser::and_expression() {
  Expression left = not_expression();
  int chain = 0;
  while (take_name("and")) {
    check_chain(chain);
    Expression right = not_expression();
    left = [=](Context& context) {
      const Value value = left(context);
      return value.truth() ? right(context) : value;
    };
  }
  return left;
}

Expression Parser::not_expression() {
  const Depth depth(*this);
  if (take_name("not")) {
    Expression value = not_expression();
    return [=](Context& context) { return Value(!value(context).truth()); };
  }
  return comparison();
}

Expression Parser::comparison() {
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
      context.count_work(left);
      context.count_work(right);
      if (!holds(symbol, left, right)) return Value(false);
      left = std::move(right);
    }
    return Value(true);
  };
}

bool Parser::holds(const std::string& symbol, const Value& a, const Value& b) {
  if (symbol == "==") return equal(a, b);
  if (symbol == "!=") return !equal(a, b);
  if (symbol == "in") return contains(b, a);
  if (symbol == "not in") return !contains(b, a);
  const int order = compare(a, b);
  return symbol == "<" ? order < 0 : symbol == "<=" ? order <= 0 : symbol == ">" ? order > 0 : order >= 0;
}

Expression Parser::binary(Expression (Parser::*next)(), std::initializer_list<const char*> symbols) {
  Expression left = (this->*next)();
  for (int chain = 0;;) {
    std::string symbol;
    for (const char* one : symbols) {
      if (is_symbol(one)) symbol = one;
    }
    if (symbol.empty()) return left;
    take();
    check_chain(chain);
    Expression right = (this->*next)();
    left = [=](Context& context) {
      const Value a = left(context);
      Value value = arithmetic(symbol, a, right(context));
      context.count_work(value);
      return value;
    };
  }
}

Expression Parser::joined() {
  Expression left = product();
  int chain = 0;
  while (take_symbol("~")) {
    check_chain(chain);
    Expression right = product();
    left = [=](Context& context) {
      Text text = left(context).str();
      text.append(right(context).str());
      Value value(std::move(text));
      context.count_work(value);
      return value;
    };
  }
  return left;
}

Expression Parser::power() {
  // NOLINTNEXTLINE(clang-analyzer-cplusplus.NewDeleteLeaks): std::function owns its copies
  Expression left = unary(true);
  int chain = 0;
  while (take_symbol("**")) {
    check_chain(chain);
    Expression right = unary(true);
    left = [=](Context& context) {
      const Value a = left(context);
      return arithmetic("**", a, right(context));
    };
  }
  return left;
}

Expression Parser::unary(bool with_filter) {
  const Depth depth(*this);
  Expression value;
  if (take_symbol("-")) {
    Expression of = unary(false);
    value = [=](Context& context) {
      const Value given = of(context);
      return given.is_real() ? Value(-given.real()) : arithmetic("-", Value(std::int64_t{0}), given);
    };
  } else if (take_symbol("+")) {
    Expression of = unary(false);
    value = [=](Context& context) { return arithmetic("+", Value(std::int64_t{0}), of(context)); };
  } else {
    value = primary();
  }
  value = postfix(std::move(value));
  return with_filter ? filtered(std::move(value)) : value;
}

Expression Parser::constant(Value value) {
  return [value = std::move(value)](Context&) { return value; };
}

Expression Parser::primary() {
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
      if (std::from_chars(token.text.data(), end, value).ec != std::errc()) fail("number too large");
      return constant(value);
    }
    case TokenKind::real: {
      double value = 0;
      std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
      return constant(value);
    }
    case TokenKind::symbol:
      if (token.text == "(") return parenthesis();
      if (token.text == "[") return list_of(items_until("]"), ListKind::list);
      if (token.text == "{") return dict_literal();
      break;
    default:
      break;
  }
  throw TemplateError(token.text.empty() ? "missing expression" : cat("unexpected '", token.text, "'"), token.line);
}

Expression Parser::parenthesis() {
  if (take_symbol(")")) return constant(Value(List{}, ListKind::tuple));
  Expression first = expression(true);
  if (take_symbol(")")) return first;
  need_symbol(",");
  std::vector<Expression> items = items_until(")");
  items.insert(items.begin(), std::move(first));
  return list_of(std::move(items), ListKind::tuple);
}

std::vector<Expression> Parser::items_until(const char* end) {
  std::vector<Expression> items;
  while (!take_symbol(end)) {
    items.push_back(expression(true));
    if (!is_symbol(end)) need_symbol(",");
  }
  return items;
}

Expression Parser::list_of(std::vector<Expression> items, ListKind kind) {
  return [items = std::move(items), kind](Context& context) {
    List list;
    for (const Expression& item : items) list.push_back(item(context));
    return Value(std::move(list), kind);
  };
}

Expression Parser::dict_literal() {
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

Call Parser::call() {
  Call out;
  while (!take_symbol(")")) {
    if (is_symbol("*") || is_symbol("**")) fail("* and ** arguments are not supported");
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

Expression Parser::postfix(Expression value) {
  for (int chain = 0;; check_chain(chain)) {
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

Value Parser::method(Context& context, const Value& object, const std::string& name, const Call& call) {
  const Arguments arguments = call.evaluate(context);
  // A field that is a function: loop.cycle, a function in a namespace.
  if (object.is_dict() && !has_python_attribute(object, name)) {
    if (const auto found = field(object, name)) return found->function()(arguments);
  }
  context.count_work(object);
  Value made = call_method(object, name, arguments);
  context.count_work(made);
  return made;
}

Expression Parser::brackets(Expression object) {
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
    if (!parts[0]) fail("missing index");
    return [object = std::move(object), index = parts[0]](Context& context) {
      const Value of = object(context);
      return subscript(of, index(context));
    };
  }
  return [object = std::move(object), from = parts[0], to = parts[1], step = parts[2]](Context& context) {
    const auto given = [&](const Expression& one) { return one ? one(context) : Value(None{}); };
    const Value of = object(context);
    context.count_work(of);
    return slice(of, given(from), given(to), given(step));
  };
}

namespace {

// Filters whose result is the same for a text of filter `safe` as for another.
bool takes_safe(const std::string& filter) {
  for (const char* one : {"safe", "string", "tojson", "length", "count", "default", "d"}) {
    if (filter == one) return true;
  }
  return false;
}

}  // namespace

Expression Parser::filtered(Expression value) {
  for (int chain = 0;; check_chain(chain)) {
    const int line = peek().line;
    if (take_symbol("|")) {
      const std::string name = need_any_name();
      Call arguments;
      if (take_symbol("(")) arguments = call();
      const Filter filter = find_filter(name);
      const bool selecting = is_selecting(name), safe_is_plain = takes_safe(name);
      if (!filter && !selecting) throw TemplateError(cat("filter '", name, "' is not supported"), line);
      value = placed(
          [=](Context& context) {
            const Value input = value(context);
            const Arguments given = arguments.evaluate(context);
            if (!safe_is_plain) {
              reject_safe(input, "with filter", name);
              for (const Value& argument : given.positional) reject_safe(argument, "with filter", name);
              for (const auto& [_, argument] : given.named) reject_safe(argument, "with filter", name);
            }
            context.count_work(input);
            Value made = selecting ? select_items(name, input, given) : filter(input, given);
            context.count_work(made);
            return made;
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

Expression Parser::test(Expression value, int line) {
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
  const ::hawser::text::chat::Test found = find_test(name);
  if (!found) throw TemplateError(cat("test '", name, "' is not supported"), line);
  return [=](Context& context) {
    const Value input = value(context);
    context.count_work(input);
    return Value(found(input, arguments.evaluate(context)) != negated);
  };
}

}  // namespace hawser::text::chat
