// Keys of a recipe, for shell completion of `--set KEY=VALUE`.
#pragma once

#include <string>
#include <vector>

namespace hawser {

struct KeyChoices {
  std::string name;  // dotted
  std::string help;
  std::vector<std::string> values;  // values it accepts, for enums; empty for numbers and text
  bool is_path = false;
};

// All keys, in the order of the schema table.
std::vector<KeyChoices> key_choices();

}  // namespace hawser
