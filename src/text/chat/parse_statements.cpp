#include "text/chat/parser.h"

namespace hawser::text::chat {

Statement Parser::block(const std::set<std::string>& ends) {
  const Depth depth(*this);
  std::vector<Statement> body;
  while (peek().kind != TokenKind::end) {
    if (peek().kind == TokenKind::begin_block && ends.contains(peek(1).text)) break;
    body.push_back(statement());
  }
  return [body = std::move(body)](Context& context) {
    const Context::Level level(context);
    for (const Statement& one : body) {
      if (const Flow flow = one(context); flow != Flow::on) return flow;
    }
    return Flow::on;
  };
}

void Parser::need_block(const char* name) {
  if (peek().kind != TokenKind::begin_block || !is_name(name, 1)) fail(cat("expected {% ", name, " %}"));
  take();
  take();
}

Statement Parser::statement() {
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

Statement Parser::if_statement() {
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

std::vector<std::string> Parser::targets() {
  std::vector<std::string> names;
  const bool parenthesis = take_symbol("(");
  do {
    names.push_back(need_any_name());
  } while (take_symbol(","));
  if (parenthesis) need_symbol(")");
  return names;
}

void Parser::assign(Context& context, const std::vector<std::string>& names, const Value& value) {
  if (names.size() == 1) return context.set(names[0], value);
  const List items = iterate(value);
  if (items.size() != names.size()) {
    throw TemplateError(cat("cannot unpack ", items.size(), " values into ", names.size()));
  }
  for (std::size_t i = 0; i < names.size(); ++i) context.set(names[i], items[i]);
}

// The items of a loop that its filter keeps. As in Jinja, the filter reads an item when the loop gets there or looks
// ahead, so that it sees what the body has set by then.
class LoopItems {
 public:
  LoopItems(List items, std::function<bool(const Value&)> keep) : items_(std::move(items)), keep_(std::move(keep)) {
    if (!keep_) kept_ = std::exchange(items_, {});
  }
  bool has(std::size_t i) {
    while (kept_.size() <= i && next_ < items_.size()) {
      Value& item = items_[next_++];
      if (keep_(item)) kept_.push_back(std::move(item));
    }
    return i < kept_.size();
  }
  const Value& at(std::size_t i) const { return kept_[i]; }
  bool is_complete() const { return next_ == items_.size(); }
  std::int64_t count() {
    has(kept_.size() + items_.size());
    return static_cast<std::int64_t>(kept_.size());
  }

 private:
  List items_, kept_;
  std::function<bool(const Value&)> keep_;
  std::size_t next_ = 0;
};

Statement Parser::for_statement(int line) {
  std::vector<std::string> names = targets();
  if (!take_name("in")) fail("expected 'in'");
  Expression over = placed(expression(false), line);
  Expression filter;
  if (take_name("if")) filter = placed(expression(true), line);
  if (is_name("recursive")) fail("recursive loops are not supported");
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
    std::function<bool(const Value&)> keep;
    if (filter) {
      keep = [&names, &filter, &context, visible = context.visible()](const Value& item) {
        auto scopes = context.enter(visible);
        assign(context, names, item);
        const bool kept = filter(context).truth();
        context.leave(std::move(scopes));
        return kept;
      };
    }
    const auto items = std::make_shared<LoopItems>(iterate(over(context)), std::move(keep));
    // As in Jinja, `else` also runs if no iteration reaches the end of the body.
    bool completed = false;
    for (std::size_t i = 0; items->has(i); ++i) {
      context.count_step();
      context.push();
      context.set("loop", loop_variable(items, i));
      assign(context, names, items->at(i));
      const Flow flow = body(context);
      context.pop();
      if (flow == Flow::stop) break;
      completed |= flow == Flow::on;
    }
    if (completed || !otherwise) return Flow::on;
    context.push();
    const Flow flow = otherwise(context);
    context.pop();
    return flow;
  };
}

Value Parser::loop_variable(const std::shared_ptr<LoopItems>& items, std::size_t i) {
  const auto index = static_cast<std::int64_t>(i);
  Dict loop;
  loop.is_loop = true;
  loop.items = {{"index", index + 1},
                {"index0", index},
                {"first", i == 0},
                {"previtem", i > 0 ? items->at(i - 1) : Value(Undefined{"loop.previtem"})},
                {"cycle", Function([i](const Arguments& arguments) -> Value {
                   if (!arguments.named.empty()) throw TemplateError("loop.cycle takes no named arguments");
                   if (arguments.positional.empty()) throw TemplateError("loop.cycle needs a value");
                   return arguments.positional[i % arguments.positional.size()];
                 })}};
  // What the next items determine is computed when it is read, if there is a filter.
  const auto add = [&](const char* name, auto compute) {
    if (items->is_complete()) {
      loop.items.emplace_back(name, compute());
    } else {
      loop.items.emplace_back(name, Function([compute](const Arguments&) -> Value { return compute(); }));
    }
  };
  add("length", [=] { return Value(items->count()); });
  add("revindex", [=] { return Value(items->count() - index); });
  add("revindex0", [=] { return Value(items->count() - index - 1); });
  add("last", [=] { return Value(!items->has(i + 1)); });
  add("nextitem", [=] { return items->has(i + 1) ? items->at(i + 1) : Value(Undefined{"loop.nextitem"}); });
  return loop;
}

Statement Parser::set_statement(int line) {
  if (peek().kind == TokenKind::name && is_symbol(".", 1)) {
    const std::string object = need_any_name();
    take();
    const std::string field = need_any_name();
    if (field.starts_with('_')) fail(cat("'", field, "' is not supported"));
    need_symbol("=");
    Expression value = placed(expression(true), line);
    need_end_block();
    return [=](Context& context) {
      const Value target = context.get(object);
      if (!target.is_dict() || !target.dict().is_namespace) {
        throw TemplateError(cat("'", object, "' is not a namespace: cannot set its fields"), line);
      }
      Value given = value(context);
      given.check_can_be_held();
      target.dict().set(field, std::move(given));
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
  if (is_symbol("|")) fail("{% set %} with a filter is not supported");
  need_end_block();
  Statement body = block({"endset"});
  need_block("endset");
  need_end_block();
  return [=](Context& context) {
    Text text;
    const Flow flow = capture(context, body, text);
    if (flow == Flow::on) assign(context, names, std::move(text));
    return flow;
  };
}

Flow Parser::capture(Context& context, const Statement& body, Text& text) {
  Text before = context.take_output();
  const bool was = std::exchange(context.capturing, true);
  context.push();
  const Flow flow = body(context);
  context.pop();
  context.capturing = was;
  text = context.take_output();
  context.put_output(std::move(before));
  return flow;
}

Statement Parser::macro_statement() {
  const std::string name = need_any_name();
  need_symbol("(");
  std::vector<std::string> names;
  std::string parameters;
  std::vector<Expression> defaults;
  while (!take_symbol(")")) {
    names.push_back(need_any_name());
    parameters += cat(parameters.empty() ? "" : " ", names.back());
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
    const Context::WeakScopes visible = context.visible();
    context.set(name, Function([=](const Arguments& arguments) -> Value {
                  check_arguments(arguments, parameters, name);
                  at->count_step();
                  auto scopes = at->enter(visible);
                  for (std::size_t i = 0; i < names.size(); ++i) {
                    const Value* given = arguments.get(i, names[i]);
                    at->set(names[i], given ? *given : defaults[i] ? defaults[i](*at) : Value(Undefined{names[i]}));
                  }
                  Text text;
                  capture(*at, body, text);
                  at->leave(std::move(scopes));
                  return text;
                }));
    return Flow::on;
  };
}

Statement Parser::generation_statement() {
  generations_ = true;
  need_end_block();
  const int loops = std::exchange(loops_, 0);  // Jinja makes a function of the body
  Statement body = block({"endgeneration"});
  loops_ = loops;
  need_block("endgeneration");
  need_end_block();
  return [body = std::move(body)](Context& context) {
    const std::size_t begin = context.written();
    context.push();
    body(context);
    context.pop();
    if (context.capturing) throw TemplateError("{% generation %} inside {% set %} or {% macro %} is not supported");
    context.generations.emplace_back(begin, context.written());
    return Flow::on;
  };
}

Statement parse_program(std::string_view source, bool& has_generations) {
  Parser parser(source);
  Statement program = parser.program();
  has_generations = parser.has_generations();
  return program;
}

}  // namespace hawser::text::chat
