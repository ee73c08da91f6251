// A file system that reports renames that it did not make: nothing counts as saved, and what was there stays.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#include "base/testing/temporary_folder.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/root.h"
#include "checkpoint/save.h"
#include "checkpoint/testing/states.h"

static bool lose_renames = false;  // to .../step-* and .../best

// In place of the C library's, for this test program.
extern "C" int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  const char* name = std::strrchr(to, '/');
  if (lose_renames && name != nullptr && (std::strncmp(name, "/step-", 6) == 0 || std::strcmp(name, "/best") == 0))
    return 0;
  return static_cast<int>(::syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
}
extern "C" int rename(const char* from, const char* to) noexcept {
  return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0);
}

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
  const auto error = [](const auto& call) -> std::string {
    lose_renames = true;
    std::string line = "none";
    try {
      call();
    } catch (const UserError& found) {
      line = found.what();
    }
    lose_renames = false;
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
