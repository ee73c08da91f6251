// YAML text to nodes, for whatever text.
#pragma once

#include <yaml-cpp/yaml.h>

#include <string>
#include <vector>

namespace hawser {

// The documents of a text. Throws YAML::Exception with the place where the text breaks. yaml-cpp 0.7 alone reads some
// broken texts (a comma that begins a line of a block list) as an endless list of empty keys, until memory is gone.
std::vector<YAML::Node> read_yaml_documents(const std::string& text);

// The one document of a text, or the first; a null node for an empty text.
YAML::Node read_yaml(const std::string& text);

}  // namespace hawser
