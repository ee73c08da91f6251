// `TensorNames`: the names of the tensors that a folder of weights or a checkpoint has. A family's reader asks it where
// one config.json has files of several spellings.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <vector>

namespace hawser::models {

class TensorNames {
 public:
  explicit TensorNames(std::vector<std::string> names) : names_(std::move(names)) { std::ranges::sort(names_); }

  bool has(const std::string& name) const { return std::ranges::binary_search(names_, name); }

  // The first of `prefixes` with which `name` is there; if it is there with none, the first.
  std::string prefix_of(const std::string& name, std::initializer_list<const char*> prefixes) const {
    for (const char* prefix : prefixes) {
      if (has(prefix + name)) return prefix;
    }
    return *prefixes.begin();
  }

 private:
  std::vector<std::string> names_;
};

}  // namespace hawser::models
