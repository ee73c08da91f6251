// The schema table: one row per key of the recipe. Reading, checking, help, docs/recipe.md, `recipe init` and the run
// folder's recipe.json all use it, so a new key is one field in recipe.h and one row in schema.cpp.
//
// Internal to config/: other modules include config/config.h.
#pragma once

#include <yaml-cpp/yaml.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/recipe.h"

namespace hawser {

inline constexpr const char* kNotSupportedYet = "not supported yet";  // Rejection::what

// Why a value was rejected; the reader adds the file, the value and the place.
struct Rejection {
  std::string what;      // "wrong type", "out of range", "unknown value", "not supported yet"
  std::string expected;  // "a whole number of at least 1"
  std::string hint;
  bool secret = false;   // do not print the value
  std::string got = "";  // of a list: the entries that are wrong; empty: the value
};

// Commands that require the key.
enum class Needed { never, to_train, always };

struct Key {
  std::string name;    // dotted: "train.steps"
  std::string values;  // accepted values, in words: "whole number, at least 1"
  std::string help;    // one line
  Needed needed = Needed::never;
  std::string unset;    // meaning of an empty default: "OUTPUT/data"
  std::string instead;  // the hint for values that are not supported yet: what to do without them
  std::string example;  // commented-out example in a written recipe if nothing is set
  std::vector<std::pair<std::string, std::string>> choice_help;  // one line per choice, if `help` is too short for it
  std::vector<std::string> choices;                              // of an enum: all accepted values
  // ~ is the home folder; --set resolves it relative to the working directory, not to the recipe. For such a key
  // `choices` are names that are not paths.
  bool is_path = false;
  // --set takes the value as it is, without YAML: text and paths may contain #, %, quotes or leading spaces. Of a list,
  // "[a, b]" is YAML, and any other value is its only item.
  bool is_literal = false, is_list = false;
  // A list may also be a map of names to lists, "{a: [b, c]}", which is YAML in --set, too.
  bool is_map = false;

  // Stores the value in the recipe, or rejects it and leaves the recipe unchanged; but of a list of names, it stores
  // the entries that are right.
  std::function<std::optional<Rejection>(const YAML::Node&, Recipe&)> read;
  // The value as JSON; null if it is not set.
  std::function<nlohmann::json(const Recipe&)> write;
  // Restores the default.
  std::function<void(Recipe&)> reset;

  std::string section() const;  // "train"; "" for a top-level key
  std::string leaf() const;     // "steps"
};

struct Section {
  std::string name;
  std::string help;
};

const std::vector<Key>& schema();
const std::vector<Section>& sections();  // in the order of the table; top-level keys have none

const Key* find_key(std::string_view name);
bool is_section(std::string_view name);
bool is_key_group(std::string_view name);  // keys have names below it, as precision.fp8 has precision.fp8.scaling

// The nearest key for an unknown one, as a dotted name: a key with the same name in another section, then the nearest
// of its own section, then the nearest anywhere; "" if none is near enough.
std::string nearest_key(std::string_view name);

}  // namespace hawser
