// `Normalizer`: changes text before pre-tokenization, by the steps of a tokenizer.json's `normalizer`.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/tokenizers/charsmap.h"
#include "text/tokenizers/pattern.h"
#include "text/tokenizers/unicode.h"

namespace hawser::text {

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
  // Replaces every match of `pattern`, or of `string`, which is not empty, if the pattern is null.
  struct Replace {
    std::shared_ptr<const Pattern> pattern;
    std::string string, content;
  };
  struct Prepend {
    std::string text;  // not added to an empty text
  };
  struct Strip {
    bool left, right;
  };
  struct Nmt {};
  struct ByteLevel {};
  struct Precompiled {
    std::shared_ptr<const Charsmap> map;
    std::shared_ptr<const Regex> cluster;  // matches a grapheme cluster
  };
  using Step = std::variant<Form, Lowercase, StripAccents, Bert, Replace, Prepend, Strip, Nmt, ByteLevel, Precompiled>;

  // One per thread.
  struct Scratch {
    std::string now, next;
  };

  void add(Step step) { steps_.push_back(std::move(step)); }
  bool empty() const { return steps_.empty(); }

  // Applies all steps to `text`, valid UTF-8. Returns a view of `text` or of the scratch. `first`: number of leading
  // characters that come from the first character of the document. It is updated, and 0 if they are dropped.
  std::string_view run(std::string_view text, Scratch& scratch, Regex::Scratch& regex, int& first) const;

 private:
  std::vector<Step> steps_;
};

}  // namespace hawser::text
