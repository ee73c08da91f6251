// `encode_framed`: a text with the tokens that the tokenizer puts around it, each of them once.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/tokenizers/tokenizer.h"

namespace hawser::text {

// As Tokenizer::encode with add_special, but a text that has these tokens already, such as one that
// apply_chat_template wrote, gets no second ones: "<s>Hi" becomes the ids of "<s>" and "Hi".
std::vector<std::int32_t> encode_framed(const Tokenizer& tokenizer, std::string_view text);

// The same for the ids of a text without its frame: the tokens that are missing before it, and after it.
struct MissingFrame {
  std::vector<std::int32_t> before, after;
};
MissingFrame missing_frame(const TextFrame& frame, const std::vector<std::int32_t>& ids);

}  // namespace hawser::text
