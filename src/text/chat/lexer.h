// `tokenize`: splits a chat template into text and tokens. Internal to chat/.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hawser::text::chat {

enum class TokenKind {
  text,
  begin_block,
  end_block,
  begin_output,
  end_output,
  name,
  string,
  integer,
  real,
  symbol,
  end
};

struct Token {
  TokenKind kind = TokenKind::end;
  std::string text;  // of a string: its value, with escapes resolved
  int line = 0;
};

// Applies Jinja's `trim_blocks` and `lstrip_blocks`, as transformers sets them, and `-` and `+` at either end of a
// tag. Drops comments. Line ends become \n. Throws TemplateError for invalid characters and unterminated tags,
// strings and comments.
std::vector<Token> tokenize(std::string_view source);

}  // namespace hawser::text::chat
