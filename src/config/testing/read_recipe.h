// `ReadRecipe`: a fixture that reads recipes from text.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/testing/temporary_folder.h"
#include "config/config.h"

namespace hawser {

inline const char* const kSmallest = R"(
model: {config: config.json}
data: {train: [a.jsonl], sequence_length: 64}
train: {steps: 10}
output: out
)";

class ReadRecipe : public ::testing::Test {
 protected:
  std::string file(const std::string& text) { return folder_.write("r.yaml", text); }
  Recipe read(const std::string& text, const std::vector<std::string>& sets = {}, Purpose purpose = Purpose::train) {
    return read_recipe(file(text), sets, purpose);
  }
  // The problems, one per line, without the folder's name.
  std::string errors(const std::string& text, const std::vector<std::string>& sets = {},
                     Purpose purpose = Purpose::train) {
    try {
      read(text, sets, purpose);
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_input);
      std::string out = error.what();
      const std::string prefix = folder_.path("");
      for (auto at = out.find(prefix); at != std::string::npos; at = out.find(prefix)) out.erase(at, prefix.size());
      return out;
    }
    return "";
  }

  TemporaryFolder folder_;
};

}  // namespace hawser
