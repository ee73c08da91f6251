// The syntax tree of a pattern that a Scanner can run; scanner.h names the subset.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "data/tokenizers/unicode.h"

namespace hawser::data {

struct PatternNode {
  enum class Kind { set, sequence, either, repeat, look } kind;
  CharacterSet set;                   // set; look: what may follow
  bool end = false;                   // look: the end of the text may follow
  std::vector<PatternNode> children;  // sequence; either: first preferred; repeat: one
  int min = 0, max = 0;               // repeat; most -1: any number
};

// nullopt: not of the subset.
std::optional<PatternNode> parse_pattern(std::string_view pattern);

}  // namespace hawser::data
