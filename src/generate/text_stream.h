// `TextStream`: converts generated tokens to text incrementally: complete characters only, and no part of a stop text.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "text/tokenizers/tokenizer.h"

namespace hawser::generate {

// Number of ids that end with a complete character: all, or fewer if the last ones are the start of one. Bytes that no
// character begins with are complete.
std::size_t whole_characters(const text::Tokenizer& tokenizer, std::span<const std::int32_t> ids);

class TextStream {
 public:
  // `before`: the tokens before the answer; they determine whether it begins with a space. A character whose first
  // bytes are in `before` belongs to the answer (whole_characters). The answer ends before the first occurrence of a
  // stop text after `before`; stop texts are not empty. The tokenizer outlives this.
  TextStream(const text::Tokenizer& tokenizer, std::span<const std::int32_t> before, std::vector<std::string> stops);

  // The text that is final now; "" while a character is incomplete, or while the text may be the start of a stop text.
  std::string push(std::int32_t id);
  // The text that was held back.
  std::string finish();
  // A stop text was found; push() has returned the complete answer.
  bool stopped() const { return stopped_; }
  // All returned text.
  const std::string& text() const { return text_; }

 private:
  std::string take(bool end);
  // The text of the `count` tokens at known_.
  std::string added(std::size_t count) const;

  const text::Tokenizer& tokenizer_;
  std::vector<std::string> stops_;
  std::vector<std::int32_t> ids_;
  std::size_t from_ = 0;   // start of the decoded ids
  std::size_t known_ = 0;  // the text of ids [from_, known_) has been consumed
  std::string held_;       // consumed, not yet returned
  std::string text_;
  bool stopped_ = false;
};

}  // namespace hawser::generate
