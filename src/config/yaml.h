// Reads YAML text into nodes; safe for any input.
#pragma once

#include <yaml-cpp/yaml.h>

#include <string>
#include <vector>

namespace hawser {

// The documents of a text. Throws YAML::Exception with the position of the error. yaml-cpp 0.7 alone reads some broken
// texts (a line of a block list that begins with a comma) as an endless list of empty keys, until memory runs out.
std::vector<YAML::Node> read_yaml_documents(const std::string& text);

// The first document of a text; a null node for an empty text.
YAML::Node read_yaml(const std::string& text);

// The document of the file `path` with this text; a null node for an empty one. UserError for broken YAML, with the
// line, and for more than one document.
YAML::Node read_yaml_file(const std::string& path, const std::string& text);

// The first line, counted from 1, with a tab before its first word; 0 if there is none.
int line_indented_by_tab(const std::string& text);

}  // namespace hawser
