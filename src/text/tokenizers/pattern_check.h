// `check_pattern`: rejects patterns of a tokenizer.json that Oniguruma and the engines of Hawser match differently:
// options that change inside a pattern, folding of one character to several ((?i:ss) matches U+00DF), and repeated
// groups that may match the empty text.
#pragma once

#include <stdexcept>
#include <string_view>

namespace hawser::text {

// `pattern`: in Oniguruma syntax. Throws std::invalid_argument, which names the construct.
void check_pattern(std::string_view pattern);

// The exception for a construct that Hawser does not match.
std::invalid_argument unsupported_construct(std::string_view construct);

}  // namespace hawser::text
