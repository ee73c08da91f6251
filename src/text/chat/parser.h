// `Parser`: recursive-descent parser that turns the tokens of a template into closures. Internal to text/chat/.
#pragma once

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/cat.h"
#include "text/chat/lexer.h"
#include "text/chat/template_program.h"

namespace hawser::text::chat {

// Arguments of a call, filter or test, not yet evaluated.
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

class LoopItems;

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
  static constexpr int kDeepest = 150;

  // Bounds chains of operators: the closure of each operator holds that of the previous one.
  static constexpr int kLongestChain = 300;
  void check_chain(int& length) const {
    if (++length > kLongestChain) fail("too many operators in a row");
  }

  // Bounds the nesting of expressions and blocks, which are parsed and evaluated recursively.
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
  // Wraps an expression: adds `line` to a TemplateError that has none.
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

  // Parses statements up to a block tag that begins with one of `ends`. Does not consume that tag.
  Statement block(const std::set<std::string>& ends);
  void need_block(const char* name);
  Statement statement();
  Statement if_statement();
  std::vector<std::string> targets();
  static void assign(Context& context, const std::vector<std::string>& names, const Value& value);
  Statement for_statement(int line);
  static Value loop_variable(const std::shared_ptr<LoopItems>& items, std::size_t i);
  Statement set_statement(int line);
  // Runs a body in a scope of its own; `text`: its output.
  static Flow capture(Context& context, const Statement& body, Text& text);
  Statement macro_statement();
  // {% generation %}: text that the model is trained on.
  Statement generation_statement();

  // Expressions, lowest precedence first.
  Expression expression(bool with_condition);
  // One expression, or several separated by commas.
  Expression tuple();
  Expression or_expression();
  Expression and_expression();
  Expression not_expression();
  Expression comparison();
  static bool holds(const std::string& symbol, const Value& a, const Value& b);
  Expression binary(Expression (Parser::*next)(), std::initializer_list<const char*> symbols);
  Expression sum() { return binary(&Parser::joined, {"+", "-"}); }
  Expression joined();
  Expression product() { return binary(&Parser::power, {"*", "/", "//", "%"}); }
  Expression power();
  Expression unary(bool with_filter);
  Expression constant(Value value);
  Expression primary();
  Expression parenthesis();
  std::vector<Expression> items_until(const char* end);
  static Expression list_of(std::vector<Expression> items, ListKind kind);
  Expression dict_literal();
  Call call();
  Expression postfix(Expression value);
  static Value method(Context& context, const Value& object, const std::string& name, const Call& call);
  Expression brackets(Expression object);
  // Filters and tests; they bind tighter than any binary operator.
  Expression filtered(Expression value);
  Expression test(Expression value, int line);

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0, loops_ = 0;
  bool generations_ = false;
};

}  // namespace hawser::text::chat
