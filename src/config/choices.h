// Keys of a recipe for a shell to complete: `--set KEY=VALUE`.
#pragma once

#include <string>
#include <vector>

namespace hawser {

struct KeyChoices {
  std::string name;  // dotted
  std::string help;
  std::vector<std::string> values;  // words that it takes; none: numbers, text
  bool is_path = false;
};

// All keys, in the order of the schema table.
std::vector<KeyChoices> key_choices();

}  // namespace hawser
