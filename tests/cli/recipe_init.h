// What the tests of hawser recipe init share.
#pragma once

#include "base/cat.h"
#include "base/testing/test_paths.h"
#include "cli/testing/binary.h"

namespace hawser::testing {

class RecipeInit : public Binary {
 protected:
  // Writes a recipe and returns it as the program reads it.
  nlohmann::json init(const std::string& arguments) {
    const Ran ran = hawser("recipe init --force --output recipe.yaml " + arguments);
    EXPECT_EQ(ran.code, 0) << arguments << "\n" << ran.err;
    const Ran read = hawser("recipe init --json " + arguments);
    EXPECT_EQ(read.code, 0) << arguments << "\n" << read.err;
    return nlohmann::json::parse(read.out);
  }
  void goes(const std::string& arguments) {
    const Ran ran = hawser(arguments);
    EXPECT_EQ(ran.code, 0) << arguments << "\n" << ran.err << folder_.read("recipe.yaml");
  }
  // Writes the tiny model's config.json with some other values.
  void write_config(const std::string& path, const nlohmann::json& changes) {
    nlohmann::json config = json_of(testing::tiny("gqa") / "config.json");
    config.update(changes);
    write(path, config.dump());
  }
  std::string text() const { return folder_.read("recipe.yaml"); }
  std::string tiny(const std::string& name) { return testing::tiny(name).string(); }

  static std::string chats(int count) {
    std::string lines;
    for (int i = 0; i < count; ++i) {
      const nlohmann::json messages = {{{"role", "user"}, {"content", "What is " + std::to_string(i) + "?"}},
                                       {{"role", "assistant"}, {"content", "A number."}}};
      lines += nlohmann::json{{"messages", messages}}.dump() + "\n";
    }
    return lines;
  }
};

}  // namespace hawser::testing
