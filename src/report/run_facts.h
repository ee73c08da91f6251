// `RunFacts`: facts of a run that are known before its first step, for MLflow, TensorBoard and report.html.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace hawser::report {

// A key of the recipe and its value as text.
struct RecipeEntry {
  std::string key;  // "train.steps"
  std::string value;
  bool given = false;  // false: it has the default's value
};

struct Fact {
  std::string name, value;  // "training tokens", "918K"
  std::string exact;        // "917955", if `value` is rounded
};
using Table = std::vector<Fact>;

// For programs that read the facts.
inline const std::string& exact_value(const Fact& fact) {
  return fact.exact.empty() ? fact.value : fact.exact;
}
// A count as "918K", with its exact value if that differs.
Fact count_fact(const std::string& name, std::int64_t count);

struct RunFacts {
  std::string name;
  std::string version;     // of Hawser
  std::string folder;      // output folder
  std::int64_t steps = 0;  // planned
  std::vector<RecipeEntry> recipe;
  Table environment, data;
  std::vector<std::pair<std::string, std::int64_t>> memory;  // bytes of a rank by category; sum: reserved memory
};

}  // namespace hawser::report
