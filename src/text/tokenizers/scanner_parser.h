// `parse_pattern`: parses a pattern of the subset in scanner.h into a syntax tree.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "text/tokenizers/unicode.h"

namespace hawser::text {

struct PatternNode {
  enum class Kind { set, sequence, either, repeat, look } kind;
  CharacterSet set;                   // set; look: characters that may follow
  bool end = false;                   // look: the end of the text may follow
  std::vector<PatternNode> children;  // sequence; either: in order of preference; repeat: one
  int min = 0, max = 0;               // repeat; max -1: no limit
};

// nullopt: outside the subset.
std::optional<PatternNode> parse_pattern(std::string_view pattern);

}  // namespace hawser::text
