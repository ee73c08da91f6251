// A template cut into text and tokens. Internal to chat/.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hawser::data::chat {

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
  std::string text;  // of a string its value
  int line = 0;
};

// With Jinja's `trim_blocks` and `lstrip_blocks`, as transformers sets them, and `-` and `+` at the tags' ends.
// Comments are left out. TemplateError for what is no token or has no end.
std::vector<Token> tokenize(std::string_view source);

}  // namespace hawser::data::chat
