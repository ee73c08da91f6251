// The schema table: one row a key of the recipe. Reading, checking, help, docs/recipe.md, `recipe init` and the run
// folder's recipe.json all come from it, so a new key is one field in base/recipe.h and one row in schema.cpp.
//
// Internal to config/: other rooms include config/config.h.
#pragma once

#include <yaml-cpp/yaml.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/recipe.h"

namespace hawser {

// Why a value was not taken; the reader adds the file, the value and the place.
struct Rejection {
  std::string what;      // "wrong type", "out of range", "unknown value", "not supported yet"
  std::string expected;  // "a whole number of at least 1"
  std::string hint;
  bool secret = false;  // the value is not repeated
};

// Which commands cannot do without the key.
enum class Needed { never, to_train, always };

struct Key {
  std::string name;    // dotted: "train.steps"
  std::string values;  // what it takes, for people: "whole number, at least 1"
  std::string help;    // one line
  Needed needed = Needed::never;
  std::string unset;    // what an empty default stands for: "OUTPUT/data"
  std::string example;  // what a recipe shows, commented out, where nothing is set
  std::vector<std::pair<std::string, std::string>> choice_help;  // one line for each choice, where `help` has no space
  std::vector<std::string> choices;                              // an enum: all values that it takes
  // ~ is the home folder; --set takes it relative to the working directory, not to the recipe. Of such a key `choices`
  // are names that are no paths.
  bool is_path = false;

  // Stores the value into the recipe, or rejects it and leaves the recipe as it was.
  std::function<std::optional<Rejection>(const YAML::Node&, Recipe&)> read;
  // The value as JSON; null when it is not set.
  std::function<nlohmann::json(const Recipe&)> write;
  // Back to the default.
  std::function<void(Recipe&)> reset;

  std::string section() const;  // "train"; "" for a key at the top
  std::string leaf() const;     // "steps"
};

struct Section {
  std::string name;
  std::string help;
};

const std::vector<Key>& schema();
const std::vector<Section>& sections();  // in the order of the table; keys at the top have none

const Key* find_key(std::string_view name);
bool is_section(std::string_view name);

// What an unknown key may have meant, as a dotted name: a key of the same name elsewhere, then the nearest of its own
// section, then the nearest anywhere; "" when nothing is near.
std::string nearest_key(std::string_view name);

}  // namespace hawser
