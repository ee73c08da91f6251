#include "config/choices.h"

#include "config/schema.h"

namespace hawser {

std::vector<KeyChoices> key_choices() {
  std::vector<KeyChoices> out;
  for (const Key& key : schema()) out.push_back({key.name, key.help, key.choices, key.is_path});
  return out;
}

}  // namespace hawser
