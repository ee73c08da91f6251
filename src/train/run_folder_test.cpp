#include "train/run_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "base/testing/temporary_folder.h"
#include "base/testing/without_privileges.h"

namespace hawser::train {
namespace run_folder_test {

namespace fs = std::filesystem;

class EarlierRun : public ::testing::Test {
 protected:
  EarlierRun() {
    for (const char* name : {"metrics.jsonl", "report.html", "recipe.json", "best/manifest.json"}) {
      folder_.write(name, name);
    }
    fs::create_directories(folder_ / "checkpoints/step-00000006");
  }
  bool whole() const {
    return folder_.read("metrics.jsonl") == "metrics.jsonl" && folder_.read("report.html") == "report.html" &&
           folder_.read("recipe.json") == "recipe.json" && folder_.read("best/manifest.json") == "best/manifest.json" &&
           fs::exists(folder_ / "checkpoints/step-00000006");
  }
  TemporaryFolder folder_;
};

TEST_F(EarlierRun, IsMovedAsAWhole) {
  EXPECT_EQ(set_aside_earlier(plan::files_in(folder_.path()), "{}"), folder_.path("earlier-1"));
  for (const char* name : {"metrics.jsonl", "report.html", "recipe.json", "best", "checkpoints"}) {
    EXPECT_TRUE(fs::exists(folder_ / "earlier-1" / name)) << name;
    EXPECT_FALSE(fs::exists(folder_ / name)) << name;
  }
  undo_interrupted_move(folder_.path());
  EXPECT_FALSE(whole()) << "a finished move stays";
}

// A folder that cannot be renamed: a mount point, another user's. A resume must not find half of a run.
TEST_F(EarlierRun, StaysWholeIfAFileCannotBeMoved) {
  fs::permissions(folder_ / "best", fs::perms::owner_read | fs::perms::owner_exec);
  const std::string problem =
      without_privileges([&] { return set_aside_earlier(plan::files_in(folder_.path()), "{}"); });
  fs::permissions(folder_ / "best", fs::perms::owner_all);
  EXPECT_NE(problem.find("Permission denied"), std::string::npos) << problem;
  EXPECT_TRUE(whole());
  EXPECT_FALSE(fs::exists(folder_ / "earlier-1"));
}

TEST_F(EarlierRun, RelativeLinksLeadToTheSameFolderAfterTheMove) {
  fs::create_directories(folder_ / "disk");
  fs::rename(folder_ / "checkpoints", folder_ / "disk/big");
  fs::create_symlink("disk/big", folder_ / "checkpoints");
  ASSERT_NE(set_aside_earlier(plan::files_in(folder_.path()), "{}"), "");
  EXPECT_TRUE(fs::exists(folder_ / "earlier-1/checkpoints/step-00000006"));
  EXPECT_FALSE(fs::exists(fs::symlink_status(folder_ / "checkpoints")));
}

// A disk that is not mounted: --resume would find no checkpoint and move the run away.
TEST_F(EarlierRun, IsNotHeldWithoutTheTargetOfItsLink) {
  fs::rename(folder_ / "checkpoints", folder_ / "away");
  fs::create_symlink("disk", folder_ / "checkpoints");
  try {
    hold_output(folder_.path());
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(std::string(error.what()), folder_.path("checkpoints") +
                                             ": a link whose target does not exist; try mounting the disk it leads to, "
                                             "or removing the link");
  }
  fs::rename(folder_ / "away", folder_ / "disk");
  EXPECT_NO_THROW(hold_output(folder_.path()));
}

TEST_F(EarlierRun, IsWholeAgainAfterAKillDuringTheMove) {
  folder_.write("earlier-1/metrics.jsonl", "of another run");
  folder_.write("earlier-2/.moving", "");
  fs::rename(folder_ / "metrics.jsonl", folder_ / "earlier-2/metrics.jsonl");
  fs::rename(folder_ / "best", folder_ / "earlier-2/best");
  undo_interrupted_move(folder_.path());
  EXPECT_TRUE(whole());
  EXPECT_FALSE(fs::exists(folder_ / "earlier-2"));
  EXPECT_EQ(folder_.read("earlier-1/metrics.jsonl"), "of another run");
}

}  // namespace run_folder_test
}  // namespace hawser::train
