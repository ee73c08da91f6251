// Helpers of this module's tests: temporary folders, golden models, complete units in memory.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/testing/temporary_folder.h"
#include "base/testing/test_paths.h"
#include "models/families.h"
#include "models/tensor_names.h"
#include "models/weights.h"

namespace hawser::models {

inline std::string golden(const std::string& name) {
  return std::string(testing::kSourceFolder) + "/tests/golden/tiny/" + name;
}

inline std::vector<std::string> golden_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(golden(""))) names.push_back(entry.path().filename());
  return names;
}

inline std::unique_ptr<Model> load_model(const std::string& path) {
  Problems problems;
  ModelDescription description = read_description(path, problems);
  EXPECT_EQ(problems.lines(), "");
  return std::make_unique<Model>(std::move(description));
}

// As a folder of these weights with the config of another.
inline std::unique_ptr<Model> load_model(const std::string& weights, const std::string& config) {
  Problems problems;
  const auto folder = checkpoint::SafetensorsFolder::open(weights, problems);
  const TensorNames names(folder ? folder->names() : std::vector<std::string>());
  ModelDescription description = read_description(config, problems, &names);
  EXPECT_EQ(problems.lines(), "");
  return std::make_unique<Model>(std::move(description));
}

inline checkpoint::SafetensorsFolder open_weights(const std::string& path) {
  Problems problems;
  auto folder = checkpoint::SafetensorsFolder::open(path, problems);
  EXPECT_EQ(problems.lines(), "");
  return std::move(*folder);
}

inline std::vector<float> values(const TensorView& view) {
  return {view.data<float>(), view.data<float>() + view.elements()};
}

// Random boundaries of ranges that cover [0, total), at multiples of `alignment`; some ranges are empty.
inline std::vector<std::int64_t> random_cuts(std::int64_t total, std::int64_t alignment, std::mt19937& random) {
  std::uniform_int_distribution<int> count(0, 7);
  std::uniform_int_distribution<std::int64_t> place(0, total / alignment);
  std::vector<std::int64_t> cuts = {0, total};
  for (int i = count(random); i > 0; --i) cuts.push_back(place(random) * alignment);
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

}  // namespace hawser::models
