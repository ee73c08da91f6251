// Tokens back to text, by the steps of a tokenizer.json's `decoder`.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "data/tokenizers/pattern.h"

namespace hawser::data {

class Decoder {
 public:
  struct ByteLevel {};     // the byte-level alphabet; all tokens become one
  struct ByteFallback {};  // runs of <0x00> to <0xFF>; a run that is no UTF-8 becomes as many U+FFFD
  struct Fuse {};          // all tokens become one
  struct Replace {
    std::shared_ptr<const Pattern> pattern;  // or none: `string`
    std::string string, content;
  };
  struct Strip {
    std::string content;  // one character
    int start, stop;      // at most so many of it at a token's ends
  };
  struct WordPiece {
    std::string prefix;
    bool cleanup;
  };
  struct Metaspace {
    std::string mark;
    bool drop_first;  // the mark that begins the text
  };
  struct Bpe {
    std::string suffix;  // of a word's last token
  };
  using Step = std::variant<ByteLevel, ByteFallback, Fuse, Replace, Strip, WordPiece, Metaspace, Bpe>;

  void add(Step step) { steps_.push_back(std::move(step)); }
  // Whether it is ByteLevel alone: then every token has bytes of its own.
  bool only_byte_level() const { return steps_.size() == 1 && std::holds_alternative<ByteLevel>(steps_[0]); }
  void set_space_between() { space_between_ = true; }  // a file without decoder: tokens, with spaces between

  // The text, or the bytes where ByteLevel comes last: tokens may start or end inside a character.
  std::string run(std::vector<std::string> tokens) const;

 private:
  std::vector<Step> steps_;
  bool space_between_ = false;
};

}  // namespace hawser::data
