// The replacements that SentencePiece compiles into its models (`precompiled_charsmap`): strings of characters and what
// stands in their place, as a double array (darts-clone's format) and a block of texts that end in NUL.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hawser::data {

class Charsmap {
 public:
  struct Match {
    std::size_t length;  // bytes of the text that are replaced
    std::string_view replacement;
  };

  Charsmap() = default;
  // The file's bytes; throws std::invalid_argument, saying what is wrong. Empty bytes: nothing is ever replaced.
  explicit Charsmap(std::string_view bytes);

  bool empty() const { return units_.empty(); }
  // The longest, or the shortest, string of the map that `text` starts with.
  std::optional<Match> longest(std::string_view text) const;
  std::optional<Match> shortest(std::string_view text) const;

 private:
  template <class Visit>
  void walk(std::string_view text, Visit visit) const;
  Match match(std::size_t length, std::uint32_t value) const;

  std::vector<std::uint32_t> units_;
  std::string texts_;
};

}  // namespace hawser::data
