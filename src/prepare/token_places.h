// `TokenPlaces`: which tokens cover a range of bytes of a text.
//
//   text "<|im_start|>user\nHi", ids of "<|im_start|>", "user", "\n", "Hi":
//   of({12, 16}) = {1, 2}: the token "user"
//
// Takes time linear in the text if the tokens' surfaces give the text back, but for a space that the tokenizer puts
// before a text or after a special token. Where a normalizer changes the text, or a token is unknown, it encodes the
// text between two special tokens again, once for each bound that is asked for. Internal to prepare.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "text/chat/chat_template.h"
#include "text/tokenizers/tokenizer.h"

namespace hawser::prepare {

class TokenPlaces {
 public:
  // `conversation`: the ids are those of Tokenizer::encode_conversation, else those of encode without special tokens.
  // Keeps references to all three.
  TokenPlaces(std::string_view text, const std::vector<std::int32_t>& ids, const text::Tokenizer& tokenizer,
              bool conversation);

  // First and end index of the tokens that cover a range: a token with bytes on both sides of a bound belongs to it.
  std::pair<std::size_t, std::size_t> of(const text::chat::Range& range) const;

  // A token that may mark a turn (Tokenizer::marks_turns), and its bytes in the text.
  struct Special {
    std::int32_t id = 0;
    std::size_t begin = 0, end = 0;
  };
  // Those that begin within the bytes [from, until), in order.
  std::span<const Special> specials(std::size_t from, std::size_t until) const;

 private:
  // A part of the text whose tokens' ends are not known. It begins with a special token, or where the text does.
  struct Gap {
    std::size_t text_begin = 0, text_end = 0;
    std::size_t token_begin = 0, token_end = 0;
  };

  void align();
  bool align_token(std::size_t token);
  bool align_with_space(std::size_t token);
  void add_gap(std::size_t token);
  const Gap* gap_at(std::size_t byte) const;

  std::vector<std::int32_t> encoded(std::string_view text) const;
  std::pair<std::size_t, bool> before(const Gap& gap, std::size_t byte) const;
  std::pair<std::size_t, bool> with_text_of(const Gap& gap, const std::vector<std::int32_t>& start,
                                            std::size_t same) const;
  bool continues(const Gap& gap, std::size_t byte, const std::vector<std::int32_t>& start) const;

  std::string_view text_;
  const std::vector<std::int32_t>& ids_;
  const text::Tokenizer& tokenizer_;
  bool conversation_ = false;
  std::vector<std::size_t> ends_;  // of each token; in a gap, the gap's end
  std::vector<Gap> gaps_;          // in order
  std::vector<Special> specials_;  // in order
};

}  // namespace hawser::prepare
