#include "text/tokenizers/word_piece.h"

#include <algorithm>

namespace hawser::text {

void WordPiece::encode(std::string_view word, std::vector<std::int32_t>& ids) const {
  const auto starts_character = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; };
  const std::size_t before = ids.size();
  bool good = static_cast<std::size_t>(std::count_if(word.begin(), word.end(), starts_character)) <= max_characters;
  for (std::size_t at = 0; good && at < word.size();) {
    std::uint32_t node = Trie::kRoot;
    good = at == 0 || tokens.go(node, continuing_prefix);
    std::size_t end = at;
    for (std::size_t i = at; good && i < word.size() && tokens.go(node, static_cast<unsigned char>(word[i])); ++i) {
      if (tokens.value(node) == Trie::kNone) continue;
      if (end > at) ids.pop_back();
      ids.push_back(tokens.value(node));
      end = i + 1;
    }
    good = good && end > at;
    at = end;
  }
  if (good) return;
  ids.resize(before);
  ids.push_back(unknown);
}

}  // namespace hawser::text
