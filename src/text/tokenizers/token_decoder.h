// `Decoder`: converts tokens to text, by the steps of a tokenizer.json's `decoder`.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/tokenizers/pattern.h"

namespace hawser::text {

// Value of a byte token "<0x1F>"; -1 for other tokens.
int value_of_byte_token(std::string_view token);

class Decoder {
 public:
  struct ByteLevel {};     // byte-level alphabet to bytes; joins all tokens into one
  struct ByteFallback {};  // runs of <0x00> to <0xFF> to text; a run that is not UTF-8: one U+FFFD per byte
  struct Fuse {};          // joins all tokens into one
  struct Replace {
    std::shared_ptr<const Pattern> pattern;  // null: replaces `string`, which is not empty
    std::string string, content;
  };
  struct Strip {
    std::string content;  // one character
    int start, stop;      // maximum number removed at the start and end of a token
  };
  struct WordPiece {
    std::string prefix;
    bool cleanup;
  };
  struct Metaspace {
    std::string mark;
    bool drop_first;  // drops the marks of the first token
  };
  struct Bpe {
    std::string suffix;  // of the last token of a word
  };
  using Step = std::variant<ByteLevel, ByteFallback, Fuse, Replace, Strip, WordPiece, Metaspace, Bpe>;

  void add(Step step) { steps_.push_back(std::move(step)); }
  // Whether ByteLevel is the only step: then each token decodes independently of its neighbours.
  bool only_byte_level() const { return steps_.size() == 1 && std::holds_alternative<ByteLevel>(steps_[0]); }
  bool has_byte_fallback() const {
    for (const Step& step : steps_) {
      if (std::holds_alternative<ByteFallback>(step)) return true;
    }
    return false;
  }
  void set_space_between() { space_between_ = true; }  // file without a decoder: joins tokens with spaces

  // Returns text, or bytes if ByteLevel is the last step: tokens may start or end inside a character.
  std::string run(std::vector<std::string> tokens) const;

  // The text of one token inside a text: with its leading space, and the byte of a byte token.
  std::string surface(std::string token) const;

 private:
  std::vector<Step> steps_;
  bool space_between_ = false;
};

}  // namespace hawser::text
