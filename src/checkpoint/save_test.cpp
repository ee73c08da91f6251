// Whatever happens during a save, the last complete checkpoint can be loaded.
#include "checkpoint/save.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "base/testing/without_privileges.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/root.h"
#include "checkpoint/storage/posix_storage.h"
#include "checkpoint/testing/states.h"
#include "io/files.h"

namespace hawser::checkpoint {
namespace save_test {

using namespace testing;  // NOLINT

const std::vector<Spec> kSpecs{{"model.weight", {40, 33}}, {"model.norm", {33}, DType::bf16}};

std::string save_step(const std::string& root, std::int64_t step, int world = 2) {
  return save({.root = root, .step = step}, cut_flat(kSpecs, world, static_cast<std::uint64_t>(step)));
}

void expect_loads(const std::string& root, std::int64_t step) {
  Problems skipped;
  auto checkpoint = Checkpoint::latest(root, skipped);
  ASSERT_TRUE(checkpoint.has_value());
  EXPECT_EQ(checkpoint->step(), step);
  const auto wanted = cut_flat(kSpecs, 1);
  checkpoint->read(wanted[0].states);
  EXPECT_TRUE(wanted[0].holds(static_cast<std::uint64_t>(step)));
}

int count_leftovers(const std::string& root) {
  int count = 0;
  for (const std::string& name : io::list_folder(root)) count += leftover_kind(name) != Leftover::none;
  return count;
}

TEST(Save, NamesLeftoversExactly) {
  EXPECT_EQ(step_name(120), "step-00000120");
  EXPECT_EQ(leftover_kind(temporary_name(step_name(120))), Leftover::temporary);
  EXPECT_EQ(leftover_kind(".step-00000120.trash-0123456789abcdef"), Leftover::trash);
  for (const char* name : {"step-00000120", ".step-00000120", ".step-00000120.tmp-", ".step-00000120.tmp-0123",
                           ".step-12.tmp-0123456789abcdef", ".ssh", ".step-00000120.bak-0123456789abcdef", "",
                           "step-00000120.tmp-0123456789abcdef", ".-0123456789abcdef", "..-0123456789abcdef"}) {
    EXPECT_EQ(leftover_kind(name), Leftover::none) << name;
  }
}

TEST(Save, LatestSkipsAndReportsIncompleteCheckpoints) {
  const TemporaryFolder root;
  Problems skipped;
  EXPECT_FALSE(Checkpoint::latest(root / "absent", skipped).has_value());
  for (const int step : {1, 2, 3, 4}) save_step(root.path(), step);
  ::truncate((root / "step-00000004/rank-00001.bin").c_str(), 5);
  ::unlink((root / "step-00000003/manifest.json").c_str());
  write_file(root / "step-00000009", "a file");
  io::make_folders(root / "step-9");  // not a valid name
  auto checkpoint = Checkpoint::latest(root.path(), skipped);
  ASSERT_TRUE(checkpoint.has_value());
  EXPECT_EQ(checkpoint->step(), 2);
  EXPECT_EQ(skipped.size(), 3u) << skipped.lines();
  EXPECT_NE(skipped.lines().find("truncated file"), std::string::npos) << skipped.lines();
  EXPECT_NE(skipped.lines().find("the save was not finished"), std::string::npos) << skipped.lines();
}

// It may be complete: a run that went on from an older one would lose steps, or replace what it cannot read.
TEST(Save, ACheckpointThatCannotBeReadIsNotSkipped) {
  const TemporaryFolder root;
  save_step(root.path(), 10);
  const std::string newest = save_step(root.path(), 20);
  chmod(newest.c_str(), 0);
  const auto outcome = without_privileges([&]() -> std::string {
    try {
      Problems skipped;
      return "step " + std::to_string(Checkpoint::latest(root.path(), skipped)->step());
    } catch (const io::IoError& error) {
      return error.what();
    }
  });
  chmod(newest.c_str(), 0700);
  EXPECT_EQ(outcome, newest + ": cannot open: Permission denied");
}

// A newer Hawser's checkpoint is not known to be corrupt either; a damaged version number is.
TEST(Save, ACheckpointOfANewerVersionIsNotSkipped) {
  const TemporaryFolder root;
  const std::string older = save_step(root.path(), 10), newest = save_step(root.path(), 20);
  const std::string path = newest + "/manifest.json", sound = read_file(path);
  const auto outcome = [&]() -> std::string {
    try {
      Problems skipped;
      return Checkpoint::latest(root.path(), skipped)->folder();
    } catch (const io::IoError& error) {
      return error.what();
    }
  };
  std::string text = sound;
  text.replace(text.find("\"version\": 1"), 12, "\"version\": 2");
  write_file(path, text);
  EXPECT_EQ(outcome(), older);
  text.replace(text.find("\"step\": 20"), 10, "\"optimizer_step\": 20");
  write_file(path, text);
  EXPECT_EQ(outcome(), path + ": unknown checkpoint version (expected 1, got 2); try the Hawser version that wrote it");
}

// A killed save of another user, whose files are private, must not end every later save.
TEST(Save, LeftoversOfAnotherUserAreLeft) {
  const TemporaryFolder root;
  const std::string left = root.path(temporary_name(step_name(20)));
  io::make_folder(left);
  chmod(left.c_str(), 0);
  const auto outcome = without_privileges([&] { return save_step(root.path(), 30); });
  chmod(left.c_str(), 0700);
  EXPECT_EQ(outcome, root.path("step-00000030"));
  EXPECT_TRUE(io::exists(left));
}

TEST(Save, KeepLastRemovesTheOldest) {
  const TemporaryFolder root;
  for (const int step : {10, 20, 30, 40}) save_step(root.path(), step);
  ::unlink((root / "step-00000040/rank-00000.bin").c_str());
  const auto removed = keep_last(root.path(), 2);
  EXPECT_EQ(removed, std::vector<std::string>{root.path("step-00000010")});
  EXPECT_EQ(keep_last(root.path(), 1), std::vector<std::string>{root.path("step-00000020")});
  EXPECT_TRUE(keep_last(root.path(), 1).empty());
  expect_loads(root.path(), 30);
  EXPECT_EQ(count_leftovers(root.path()), 0);
}

TEST(Save, ReplacesTheSameStep) {
  const TemporaryFolder root;
  save_step(root.path(), 5, 4);
  ::truncate((root / "step-00000005/rank-00001.bin").c_str(), 5);
  save_step(root.path(), 5, 1);
  expect_loads(root.path(), 5);
  EXPECT_EQ(io::list_folder(root / "step-00000005"), (std::vector<std::string>{"manifest.json", "rank-00000.bin"}));
  EXPECT_EQ(count_leftovers(root.path()), 0);
}

TEST(Save, RemovesOnlyLeftoversOfDeadSessions) {
  const TemporaryFolder root;
  // A child dies in the middle of a save.
  wait_child(start_child([&] {
    SaveSession session = SaveSession::begin({.root = root.path(), .step = 1});
    session.write(cut_flat(kSpecs, 1, 1)[0].states);
    ::_exit(0);
  }));
  io::make_folders(root / ".step-00000001.trash-0123456789abcdef/x");
  EXPECT_EQ(count_leftovers(root.path()), 2);
  const auto ranks = cut_flat(kSpecs, 1, 2);
  SaveSession living = SaveSession::begin({.root = root.path(), .step = 2});
  EXPECT_EQ(count_leftovers(root.path()), 1);
  const std::string part = living.write(ranks[0].states);
  save_step(root.path(), 3);
  EXPECT_EQ(count_leftovers(root.path()), 1);  // the live process's
  living.commit({part}, "{}");
  EXPECT_EQ(count_leftovers(root.path()), 0);
  Problems skipped;
  EXPECT_EQ(complete_checkpoints(root.path(), skipped).size(), 2u);
}

TEST(Save, AFailedRankFailsTheSaveAndLeavesNothing) {
  const TemporaryFolder root;
  save_step(root.path(), 1);
  {
    const auto ranks = cut_flat(kSpecs, 2, 2);
    const SaveOptions options{.root = root.path(), .step = 2, .world = 2};
    SaveSession session = SaveSession::begin(options);
    const std::string part = session.write(ranks[0].states);
    const std::string failure = SaveSession::failed_part(1, "FILE: no space left on the disk");
    expect_line(error_of([&] { session.commit({part, failure}, "{}"); }), "rank 1: FILE: no space left on the disk");
    EXPECT_EQ(count_leftovers(root.path()), 0);
  }
  {  // a rank with a different disk
    const auto ranks = cut_flat(kSpecs, 2, 2);
    const SaveOptions options{.root = root.path(), .step = 2, .world = 2};
    SaveSession session = SaveSession::begin(options);
    const std::string part = session.write(ranks[0].states);
    const std::string other = SaveSession::join(options, session.ticket(), 1).write(ranks[1].states);
    ::unlink((root / session.ticket() / "rank-00001.bin").c_str());
    expect_line(error_of([&] { session.commit({part, other}, "{}"); }), "an output folder that all nodes share");
  }
  {  // never committed
    SaveSession session = SaveSession::begin({.root = root.path(), .step = 2});
    EXPECT_EQ(count_leftovers(root.path()), 1);
  }
  EXPECT_EQ(count_leftovers(root.path()), 0);
  expect_loads(root.path(), 1);
}

TEST(Save, RejectsBoxesThatDoNotTileTheTensor) {
  const TemporaryFolder root;
  const Spec spec{"a", {4}};
  const auto commit = [&](const std::vector<Region>& regions, const std::string& metadata = "{}") {
    std::vector<Host> ranks(1);
    ranks[0].add(spec, regions, 1);
    save({.root = root.path(), .step = 1}, ranks, metadata);
  };
  EXPECT_THROW(commit({{{0}, {3}}, {{2}, {2}}}), InternalError);
  EXPECT_THROW(commit({{{0}, {3}}}), InternalError);
  EXPECT_THROW(commit({full({4})}, "[1]"), InternalError);
  EXPECT_TRUE(step_folders(root.path()).empty());
  EXPECT_EQ(count_leftovers(root.path()), 0);
  commit({full({4})});
}

// A child saves in a loop and is killed at a random moment, fifty times. The last checkpoint that it reported, or a
// newer one, loads with equal bits.
TEST(Save, SurvivesKillsAtRandomMoments) {
  const TemporaryFolder root;
  const std::vector<Spec> specs{{"w", {64, 513}}, {"m", {64, 513}}, {"v", {77}, DType::bf16}};
  const RandomStream random(static_cast<std::uint64_t>(::getpid()), "kills");
  const auto cut_and_save = [&](std::int64_t step, int ranks) {
    save({.root = root.path(), .step = step, .max_box_bytes = 20000},
         cut_flat(specs, ranks, static_cast<std::uint64_t>(step)));
  };
  const auto began = std::chrono::steady_clock::now();
  cut_and_save(1, 2);
  const auto one_save =
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - began).count();
  const auto longest_delay = static_cast<std::uint64_t>(std::max<std::int64_t>(40000, 2 * one_save));  // microseconds
  std::int64_t newest = 1;
  int kills_with_leftovers = 0;
  for (std::uint64_t kill = 0; kill < 50; ++kill) {
    int report[2];
    ASSERT_EQ(::pipe(report), 0);
    const std::int64_t first = newest;
    const pid_t child = start_child([&] {
      for (std::int64_t step = first + 1;; ++step) {
        for (int again = 0; again <= (step % 3 == 0); ++again) {  // every third is saved twice, as after a resume
          cut_and_save(step, 1 + again + static_cast<int>(step % 3));
          if (::write(report[1], &step, sizeof(step)) != sizeof(step)) ::_exit(1);
        }
        keep_last(root.path(), 2);
      }
    });
    ::close(report[1]);
    // Every other child saves at least once, so that the run advances.
    std::int64_t step = 0;
    if (kill % 2 == 0) {
      ASSERT_EQ(::read(report[0], &step, sizeof(step)), static_cast<ssize_t>(sizeof(step)));
      newest = std::max(newest, step);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random.below(longest_delay, kill)));
    ::kill(child, SIGKILL);
    EXPECT_TRUE(WIFSIGNALED(wait_child(child)));
    while (::read(report[0], &step, sizeof(step)) == static_cast<ssize_t>(sizeof(step)))
      newest = std::max(newest, step);
    ::close(report[0]);
    kills_with_leftovers += count_leftovers(root.path()) > 0;

    Problems skipped;
    auto checkpoint = Checkpoint::latest(root.path(), skipped);
    EXPECT_TRUE(skipped.empty()) << skipped.lines();  // a name without a dot is a complete checkpoint
    ASSERT_TRUE(checkpoint);
    EXPECT_GE(checkpoint->step(), newest);
    newest = checkpoint->step();
    const auto wanted = cut_flat(specs, 3);
    for (const Host& host : wanted) {
      checkpoint->read(host.states);
      EXPECT_TRUE(host.holds(static_cast<std::uint64_t>(newest))) << "step " << newest;
    }
  }
  EXPECT_GE(newest, 25);
  EXPECT_GT(kills_with_leftovers, 0);  // the kills did hit saves
  save({.root = root.path(), .step = newest + 1}, cut_flat(specs, 1, 1));
  EXPECT_EQ(count_leftovers(root.path()), 0);
}

TEST(Save, KeepLastNeverRemovesTheOneJustSaved) {
  const TemporaryFolder root;
  for (const int step : {30, 40, 10}) save_step(root.path(), step);
  const auto removed = keep_last(root.path(), 2, root.path("step-00000010"));
  EXPECT_TRUE(removed.empty());
  EXPECT_EQ(keep_last(root.path(), 1, root.path("step-00000010")),
            std::vector<std::string>{root.path("step-00000030")});
}

// On a file system that cannot swap folders, `best` is renamed away before the new one gets its name.
TEST(Save, ACrashBetweenTheRenamesOfBestLosesNone) {
  const TemporaryFolder root;
  const std::string best = root.path("best");
  for (const int step : {10, 20}) save_step(root.path(), step);
  keep_also_as(root.path("step-00000010"), best);
  const auto leave = [&](const char* name, int step) {
    keep_also_as(root.path(step_name(step)), best);
    io::rename_path(best, root.path(name));
  };
  leave(".best.tmp-0123456789abcdef", 10);
  finish_keep(best);
  EXPECT_EQ(Checkpoint::open(best).step(), 10);
  EXPECT_FALSE(io::exists(root.path(".best.tmp-0123456789abcdef")));
  io::rename_path(best, root.path(".best.tmp-0123456789abcdef"));  // and the newer one was complete already
  io::make_folder(root.path(".best.tmp-0123456789abcdea"));
  for (const std::string& name : io::list_folder(root.path("step-00000020")))
    io::link_or_copy(root.path("step-00000020/") + name, root.path(".best.tmp-0123456789abcdea/") + name);
  io::make_folder(root.path(".best.tmp-0123456789abcdeb"));  // still without files
  finish_keep(best);
  EXPECT_EQ(Checkpoint::open(best).step(), 20);
  finish_keep(best);  // nothing left to do
  keep_also_as(root.path("step-00000010"), best);
  EXPECT_EQ(Checkpoint::open(best).step(), 10);
  for (const std::string& name : io::list_folder(root.path())) EXPECT_FALSE(name.starts_with(".best.tmp-")) << name;

  // Where folders cannot be renamed, the one before is removed in place, its manifest first: killed after that.
  io::make_folder(root.path(".best.tmp-0123456789abcdec"));
  for (const std::string& name : io::list_folder(root.path("step-00000020")))
    io::link_or_copy(root.path("step-00000020/") + name, root.path(".best.tmp-0123456789abcdec/") + name);
  io::remove_tree(best + "/manifest.json");
  finish_keep(best);
  EXPECT_EQ(Checkpoint::open(best).step(), 20);
  EXPECT_EQ(io::list_folder(best), io::list_folder(root.path("step-00000020")));
}

// A run that took an error for an empty folder would start over.
TEST(Save, AFolderThatCannotBeReadIsNotEmpty) {
  const TemporaryFolder root;
  EXPECT_TRUE(io::list_folder(root.path("absent")).empty());
  EXPECT_FALSE(io::exists(root.path("absent/below")));
  EXPECT_THROW(io::list_folder(root.path(std::string(300, 'a'))), UserError);
  ::chmod(root.path().c_str(), 0);
  if (::geteuid() == 0 && ::seteuid(65534) == 0) {
    const std::string listed = error_of([&] { io::list_folder(root.path()); });
    const std::string found = error_of([&] { io::exists(root.path("a")); });
    EXPECT_EQ(::seteuid(0), 0);
    expect_line(listed, "cannot read: Permission denied");
    expect_line(found, "cannot read: Permission denied");
  }
}

TEST(Save, ReportsAFullDiskBeforeWriting) {
  const TemporaryFolder root;
  save_step(root.path(), 1);
  const auto begin = [&] { SaveSession::begin({.root = root.path(), .step = 2, .expected_bytes = INT64_MAX}); };
  expect_line(error_of(begin), "no space left on the disk (expected space for 9223372036854775807 bytes, got ");
  EXPECT_EQ(count_leftovers(root.path()), 0);
  expect_loads(root.path(), 1);
}

// A mounted tmpfs, if this process may mount one.
class Tmpfs {
 public:
  explicit Tmpfs(const std::string& options) {
    mounted_ = ::mount("tmpfs", folder_.path().c_str(), "tmpfs", 0, options.c_str()) == 0;
  }
  ~Tmpfs() {
    if (mounted_) ::umount2(folder_.path().c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }
  std::string path() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
  bool mounted_ = false;
};

TEST(Save, AFullDiskLeavesOldCheckpointsIntact) {
  const Tmpfs disk("size=128k");
  if (!disk.mounted()) GTEST_SKIP() << "mounting a tmpfs needs root";
  int failed = 0;
  std::int64_t newest = 0;
  for (std::int64_t step = 1; step <= 30; ++step) {
    const std::string line = error_of([&] { save_step(disk.path(), step); });
    if (line.empty()) {
      newest = step;
    } else {
      expect_line(line, "no space left on the disk (expected space for ");
      expect_line(line, disk.path());
      ++failed;
      EXPECT_EQ(count_leftovers(disk.path()), 0);
    }
    expect_loads(disk.path(), newest);
  }
  EXPECT_GT(failed, 10);
  EXPECT_GT(newest, 5);
  // With free space again, saving continues.
  keep_last(disk.path(), 1);
  save_step(disk.path(), 31);
  expect_loads(disk.path(), 31);
}

// statvfs promises space but there are no inodes: every place in a save at which the disk may be full.
TEST(Save, ADiskThatFillsInTheMiddleLeavesOldCheckpointsIntact) {
  for (int inodes = 8; inodes < 30; ++inodes) {
    const Tmpfs disk(cat("size=4m,nr_inodes=", inodes));
    if (!disk.mounted()) GTEST_SKIP() << "mounting a tmpfs needs root";
    std::int64_t newest = 0;
    std::string line;
    for (std::int64_t step = 1; step <= 12; ++step) {
      line = error_of([&] { save_step(disk.path(), step); });
      if (!line.empty()) break;
      newest = step;
    }
    expect_line(line, "no space left on the disk");
    EXPECT_EQ(count_leftovers(disk.path()), 0);
    if (newest > 0) expect_loads(disk.path(), newest);
  }
}

// The system fails in the middle of a file: short writes, then an error.
TEST(Save, AFileSizeLimitIsAnErrorOfOneLine) {
  const TemporaryFolder root;
  save_step(root.path(), 1);
  for (const rlim_t limit : {rlim_t{0}, rlim_t{1}, rlim_t{700}, rlim_t{2000}, rlim_t{2700}}) {
    const int status = wait_child(start_child([&] {
      ::signal(SIGXFSZ, SIG_IGN);
      const rlimit bound{limit, limit};
      ::setrlimit(RLIMIT_FSIZE, &bound);
      const std::string line = error_of([&] { save_step(root.path(), 2); });
      const bool good = line.find("file size limit exceeded (expected space for ") != std::string::npos &&
                        line.find('\n') == std::string::npos && count_leftovers(root.path()) == 0;
      ::_exit(good ? 0 : 3);
    }));
    EXPECT_EQ(status, 0) << "limit " << limit;
    expect_loads(root.path(), 1);
  }
}

TEST(Save, AttachesSmallFiles) {
  const TemporaryFolder root;
  SaveSession session = SaveSession::begin({.root = root.path(), .step = 3});
  const std::vector<std::string> parts = {session.write({})};
  const std::string folder = session.commit(parts, "{}", {{"notes.txt", "kept"}, {"empty", ""}});
  const Checkpoint checkpoint = Checkpoint::open(folder);
  EXPECT_EQ(checkpoint.attached(), (std::vector<std::string>{"notes.txt", "empty"}));
  EXPECT_EQ(checkpoint.read_attached("notes.txt"), "kept");
  EXPECT_EQ(checkpoint.read_attached("empty"), "");
  write_file(folder + "/notes.txt", "Kept");
  expect_line(error_of([&] { checkpoint.read_attached("notes.txt"); }), "checksum mismatch");
  write_file(folder + "/notes.txt", "kept longer");
  EXPECT_THROW(checkpoint.read_attached("notes.txt"), CorruptCheckpoint);
  io::remove_tree(folder + "/notes.txt");
  expect_line(error_of([&] { checkpoint.read_attached("notes.txt"); }), "is missing");
  EXPECT_EQ(Checkpoint::open(folder).step(), 3) << "a run can continue without it";
}

TEST(Save, ReportsUnwritableFoldersBeforeSaving) {
  const TemporaryFolder root;
  write_file(root / "file", "x");
  Problems problems;
  io::check_writable(root / "new/folder", problems);
  EXPECT_TRUE(problems.empty()) << problems.lines();
  EXPECT_TRUE(io::list_folder(root / "new/folder").empty());
  io::check_writable(root / "file/folder", problems);
  io::check_writable("/proc/hawser", problems);
  ASSERT_EQ(problems.size(), 2u);
  for (const Problem& problem : problems.all()) expect_line(problem.line(), "the folder is not writable");
  expect_line(error_of([&] { SaveSession::begin({.root = root / "file"}); }), "cannot create the folder");
}

}  // namespace save_test
}  // namespace hawser::checkpoint
