// A file system that reports renames that it did not make: nothing counts as saved, and what was there stays.
#include <gtest/gtest.h>

#include "base/testing/system_calls.h"
#include "base/testing/temporary_folder.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/root.h"
#include "checkpoint/save.h"
#include "checkpoint/testing/states.h"

namespace hawser::checkpoint {
namespace lost_rename_test {

using namespace testing;  // NOLINT

TEST(LostRename, IsAnErrorOfTheSave) {
  const TemporaryFolder folder;
  const std::string root = folder.path("checkpoints"), best = folder.path("best"), step = root + "/" + step_name(1);
  const std::vector<Spec> specs{{"w", {40, 33}}};
  const auto save_version = [&](std::uint64_t version) {
    return save({.root = root, .step = 1}, cut_flat(specs, 2, version));
  };
  const auto holds = [&](const std::string& path, std::uint64_t version) {
    Checkpoint checkpoint = Checkpoint::open(path);
    const auto wanted = cut_flat(specs, 1);
    checkpoint.read(wanted[0].states);
    return wanted[0].holds(version);
  };
  SystemCalls calls(folder.path());
  const auto error = [&](const auto& call) -> std::string {
    for (const char* name : {"rename", "exchange"}) {
      for (const char* to : {"/step-", "/best"}) calls.lose(name, to);
    }
    std::string line = "none";
    try {
      call();
    } catch (const UserError& found) {
      line = found.what();
    }
    calls.stop_failing();
    return line;
  };
  const auto expect_lost = [](const std::string& line) {
    EXPECT_NE(line.find(": the file system reported a rename that it did not make"), std::string::npos) << line;
  };
  expect_lost(error([&] { save_version(1); }));
  EXPECT_TRUE(step_folders(root).empty());
  save_version(1);
  expect_lost(error([&] { keep_also_as(step, best); }));
  EXPECT_TRUE(holds(step, 1));
  keep_also_as(step, best);
  // In place of an earlier one.
  expect_lost(error([&] { save_version(2); }));
  EXPECT_TRUE(holds(step, 1));
  save_version(2);
  expect_lost(error([&] { keep_also_as(step, best); }));
  EXPECT_TRUE(holds(best, 1));
  EXPECT_TRUE(holds(step, 2));
}

}  // namespace lost_rename_test
}  // namespace hawser::checkpoint
