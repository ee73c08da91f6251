// What is done to text before it is cut into words, by the steps of a tokenizer.json's `normalizer`.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "data/tokenizers/charsmap.h"
#include "data/tokenizers/pattern.h"
#include "data/tokenizers/unicode.h"

namespace hawser::data {

class Normalizer {
 public:
  struct Form {
    NormalForm form;
  };
  struct Lowercase {};
  struct StripAccents {};
  struct Bert {
    bool clean_text, handle_chinese_chars, strip_accents, lowercase;
  };
  // Every match of a pattern, or of a string where there is no pattern.
  struct Replace {
    std::shared_ptr<const Pattern> pattern;
    std::string string, content;
  };
  struct Prepend {
    std::string text;  // not put before an empty text
  };
  struct Strip {
    bool left, right;
  };
  struct Nmt {};
  struct ByteLevel {};
  struct Precompiled {
    std::shared_ptr<const Charsmap> map;
    std::shared_ptr<const Regex> cluster;  // a grapheme cluster
  };
  using Step = std::variant<Form, Lowercase, StripAccents, Bert, Replace, Prepend, Strip, Nmt, ByteLevel, Precompiled>;

  // One a thread.
  struct Scratch {
    std::string now, next;
  };

  void add(Step step) { steps_.push_back(std::move(step)); }
  bool empty() const { return steps_.empty(); }

  // `text`, valid UTF-8, after all steps: a view of `text` itself or of the scratch. `first` is how many characters at
  // the start stand for the document's first one; it is kept up to date, down to 0 when they are dropped.
  std::string_view run(std::string_view text, Scratch& scratch, Regex::Scratch& regex, int& first) const;

 private:
  std::vector<Step> steps_;
};

}  // namespace hawser::data
