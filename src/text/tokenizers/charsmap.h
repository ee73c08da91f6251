// `Charsmap`: string replacements that SentencePiece compiles into its models (`precompiled_charsmap`). The strings are
// a double array (darts-clone's format), the replacements a block of NUL-terminated texts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hawser::text {

class Charsmap {
 public:
  struct Match {
    std::size_t length;  // bytes of the text that are replaced
    std::string_view replacement;
  };

  Charsmap() = default;
  // Parses the bytes of the file. Throws std::invalid_argument with the reason. Empty bytes: no replacements.
  explicit Charsmap(std::string_view bytes);

  bool empty() const { return units_.empty(); }
  // The longest, or shortest, string of the map that is a prefix of `text`.
  std::optional<Match> longest(std::string_view text) const;
  std::optional<Match> shortest(std::string_view text) const;

 private:
  template <class Visit>
  void walk(std::string_view text, Visit visit) const;
  Match match(std::size_t length, std::uint32_t value) const;

  std::vector<std::uint32_t> units_;
  std::string texts_;
};

}  // namespace hawser::text
