// Configs of all families for tests: few keys, and a patch.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "models/testing/model_files.h"

namespace hawser::models {

using Ordered = nlohmann::ordered_json;

// Sizes alone, for all families; 8 query heads divide by all defaults of num_key_value_heads below 32.
inline const Ordered kBare = Ordered::parse(R"({"vocab_size": 96, "hidden_size": 64, "intermediate_size": 48,
  "num_hidden_layers": 4, "num_attention_heads": 8})");

struct Reading {
  ModelDescription description;
  std::string problems;
};

// kBare of a family, with the keys of `patch` (null values stay).
inline Reading read_as(const std::string& family, const std::string& patch = "{}", const TensorNames* names = nullptr) {
  Ordered json = kBare;
  json["model_type"] = family;
  json.update(Ordered::parse(patch));
  Problems problems;
  Reading out;
  out.description = describe_unchecked(json.dump(), "config.json", problems, names);
  out.problems = problems.lines();
  return out;
}

inline ModelDescription described_as(const std::string& family, const std::string& patch = "{}",
                                     const TensorNames* names = nullptr) {
  Reading reading = read_as(family, patch, names);
  EXPECT_EQ(reading.problems, "") << family << " " << patch;
  EXPECT_FALSE(reading.description.blocks.empty());
  if (reading.description.blocks.empty()) reading.description.blocks.resize(4);
  return reading.description;
}

}  // namespace hawser::models
