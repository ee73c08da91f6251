// What is known of a run before its first step: what MLflow, TensorBoard and report.html tell beside the curves.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace hawser::report {

// A key of the recipe with its value, as text.
struct RecipeEntry {
  std::string key;  // "train.steps"
  std::string value;
  bool given = false;  // else it is the default
};

using Table = std::vector<std::pair<std::string, std::string>>;

struct RunFacts {
  std::string name;
  std::string version;     // of hawser
  std::string folder;      // where it writes
  std::int64_t steps = 0;  // planned in all
  std::vector<RecipeEntry> recipe;
  Table environment, data;
  std::vector<std::pair<std::string, std::int64_t>> memory;  // bytes of a rank by purpose; together what it reserves
};

}  // namespace hawser::report
