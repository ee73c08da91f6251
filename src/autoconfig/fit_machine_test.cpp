#include "autoconfig/fit_machine.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/testing/temporary_folder.h"
#include "base/testing/test_paths.h"
#include "base/units.h"
#include "models/families.h"

namespace hawser::autoconfig {
namespace fit_machine_test {

// A recipe of that memory leaves what `auto` leaves free, and not much more.
TEST(FitTo, SuggestsTheMemoryThatFitsWithTheMargin) {
  // Almost all of the memory is state, which no policy makes smaller, and a MiB, to which it is rounded, is little.
  const TemporaryFolder folder;
  auto json =
      nlohmann::json::parse(read_file(std::string(testing::kSourceFolder) + "/tests/golden/tiny/gqa/config.json"));
  json["vocab_size"] = 400'000;
  folder.write("config.json", json.dump());
  const std::string config = folder.path("config.json");
  Problems problems;
  const models::Model model(models::read_description(config, problems));
  ASSERT_EQ(problems.lines(), "");
  const Place place{.target = plan::load_target("cpu"), .machine = plan::this_machine()};
  Recipe recipe;
  recipe.model.config = config;
  recipe.data.sequence_length = 64;
  recipe.memory.capacity = Bytes(1 << 16);
  std::string error;
  try {
    fit_to(recipe, model, place, recipe.data.sequence_length);
  } catch (const Error& rejected) {
    EXPECT_EQ(rejected.code(), ExitCode::does_not_fit);
    error = rejected.what();
  }
  const std::string flag = "--memory ";
  const std::size_t at = error.find(flag);
  ASSERT_NE(at, std::string::npos) << error;
  const std::size_t begin = at + flag.size();
  const std::optional<Bytes> memory = parse_bytes(error.substr(begin, error.find(' ', begin) - begin));
  ASSERT_TRUE(memory) << error;
  recipe.memory.capacity = *memory;
  const Fitted fitted = fit_to(recipe, model, place, recipe.data.sequence_length);
  const double share = static_cast<double>(fitted.forecast.needed()) / static_cast<double>(memory->value());
  EXPECT_LE(share, 1 - plan::kAutoMargin) << error;
  EXPECT_GT(share, 1 - 2 * plan::kAutoMargin) << error;
}

}  // namespace fit_machine_test
}  // namespace hawser::autoconfig
