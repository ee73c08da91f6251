// For tests of config/convert/: a short file of another trainer, and what becomes of it.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "base/testing/temporary_folder.h"
#include "config/convert/conversion.h"
#include "config/convert/convert.h"
#include "config/schema.h"

namespace hawser::testing {

// A file with the keys of `yaml` has `json` as the value of `key`; "dropped" is no key.
struct ConvertedKey {
  std::string_view yaml, key, json;
};

class ConvertedFile : public ::testing::Test {
 protected:
  // Converts `base_` with these keys after it; a key that both have takes the later value.
  Converted convert(const std::string& yaml, ConvertOptions options = {}) {
    options.file = folder_.write("other.yaml", base_ + yaml);
    Problems problems;
    const Converted converted = convert_recipe(options, problems);
    problems.throw_if_any();
    return converted;
  }
  // The problems, one per line, without the folder's name.
  std::string errors(const std::string& yaml, const ConvertOptions& options = {}) {
    try {
      convert(yaml, options);
    } catch (const UserError& error) {
      std::string out = error.what();
      const std::string prefix = folder_.path("");
      for (auto at = out.find(prefix); at != std::string::npos; at = out.find(prefix)) out.erase(at, prefix.size());
      return out;
    }
    return "";
  }
  // The value of a key of the recipe.
  static nlohmann::json value(const Converted& converted, std::string_view key) {
    nlohmann::json node = nlohmann::json::parse(recipe_json(converted.recipe));
    while (true) {
      if (node.contains(key)) return node[std::string(key)];  // a section's "early_stopping.patience"
      const std::size_t dot = key.find('.');
      node = node.value(std::string(key.substr(0, dot)), nlohmann::json());
      if (dot == std::string_view::npos || !node.is_object()) return node;
      key.remove_prefix(dot + 1);
    }
  }
  // "not needed: empty or off"; "" for a key that is converted.
  static std::string dropped(const Converted& converted, const std::string& key) {
    for (const DroppedKeys& group : converted.dropped) {
      for (const std::string& name : group.keys) {
        if (name == key) return label_of(group.why) + ": " + group.reason;
      }
    }
    return "";
  }
  static bool has_remark(const Converted& converted, std::string_view part) {
    for (const std::string& remark : converted.remarks) {
      if (remark.find(part) != std::string::npos) return true;
    }
    return false;
  }

  template <std::size_t N>
  void check(const ConvertedKey (&cases)[N]) {
    for (const ConvertedKey& one : cases) {
      SCOPED_TRACE(one.yaml);
      const Converted converted = convert(std::string(one.yaml) + "\n");
      checked_.insert(converted.mapped.begin(), converted.mapped.end());
      EXPECT_EQ(value(converted, one.key).dump(), one.json) << one.key;
    }
  }
  // Expects that the cases had every key of the trainer that the recipe takes.
  void expect_all_checked(const convert::Trainer& trainer) const {
    const auto check_names = [&](std::span<const convert::Rule> rules, const std::string& prefix) {
      for (const convert::Rule& rule : rules) {
        if (rule.becomes == convert::Becomes::dropped || find_key(rule.target) == nullptr) continue;
        convert::each_name(rule.names, [&](std::string_view name) {
          EXPECT_TRUE(checked_.contains(prefix + std::string(name))) << prefix << name << " has no case";
        });
      }
    };
    check_names(trainer.rules, "");
    check_names(trainer.data_rules, "datasets[].");
  }

  TemporaryFolder folder_;
  std::string base_;

 private:
  std::set<std::string> checked_;
};

}  // namespace hawser::testing
