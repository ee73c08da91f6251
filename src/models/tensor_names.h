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

  // The one of `prefixes` with which `name` is there; if it is there with none, the first. If it is there with several,
  // the one with which most tensors of layers are.
  std::string prefix_of(const std::string& name, std::initializer_list<const char*> prefixes) const {
    std::string found = *prefixes.begin();
    std::ptrdiff_t most = -1;
    for (const std::string prefix : prefixes) {
      if (!has(prefix + name)) continue;
      const auto of_layers = std::ranges::count_if(
          names_, [&](const std::string& tensor) { return tensor.starts_with(prefix + "layers."); });
      if (of_layers > most) {
        most = of_layers;
        found = prefix;
      }
    }
    return found;
  }

 private:
  std::vector<std::string> names_;
};

}  // namespace hawser::models
