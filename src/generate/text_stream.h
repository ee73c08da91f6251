// Tokens to text as they come: whole characters only, and never a part of a text that ends the answer.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "data/tokenizers/tokenizer.h"

namespace hawser::generate {

// How many of the ids end with a whole character: all, or without those at the end that begin one.
std::size_t whole_characters(const data::Tokenizer& tokenizer, std::span<const std::int32_t> ids);

class TextStream {
 public:
  // `before`: the tokens that the answer goes on from; they decide whether it begins with a space. A character that
  // they begin is the answer's (whole_characters). A stop text, which is not empty, ends the answer where it first
  // stands in the text behind them, and is not part of it. The tokenizer outlives this.
  TextStream(const data::Tokenizer& tokenizer, std::span<const std::int32_t> before, std::vector<std::string> stops);

  // The text that is certain now; "" while a character is not whole, or while what came may be the start of a stop
  // text.
  std::string push(std::int32_t id);
  // What was held back.
  std::string finish();
  // A stop text was found: what push() returned by then is all.
  bool stopped() const { return stopped_; }
  // All that was returned.
  const std::string& text() const { return text_; }

 private:
  std::string take(bool end);

  const data::Tokenizer& tokenizer_;
  std::vector<std::string> stops_;
  std::vector<std::int32_t> ids_;
  std::size_t from_ = 0;   // decoding begins here
  std::size_t known_ = 0;  // the text of ids [from_, known_) has been taken
  std::string held_;       // taken, not returned
  std::string text_;
  bool stopped_ = false;
};

}  // namespace hawser::generate
