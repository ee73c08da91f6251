// Outputs that cannot be written: one line, exit code 2, and older checkpoints as they were.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <fstream>

#include "harness.h"

namespace hawser::faults {
namespace disk_test {

// Unmounts in its destructor.
struct SmallDisk {
  SmallDisk(const fs::path& where, const std::string& size) : path(where) {
    fs::create_directories(path);
    mounted = mount("hawser-test", path.c_str(), "tmpfs", 0, ("size=" + size).c_str()) == 0;
  }
  ~SmallDisk() {
    if (mounted) umount2(path.c_str(), MNT_DETACH);
  }
  fs::path path;
  bool mounted = false;
};

void expect_rejection(const Ended& ended, const std::string& what) {
  EXPECT_EQ(ended.code, 2) << ended.err;
  ASSERT_EQ(ended.lines().size(), 1u) << ended.err;
  EXPECT_NE(ended.lines().front().find(what), std::string::npos) << ended.err;
}

// LOWER under a writable layer, as a container sees its image: no folder of LOWER can be renamed. Unmounts in its
// destructor.
struct Overlay {
  Overlay(const fs::path& lower, const fs::path& layers, const fs::path& where)
      : disk(layers, "32m"), path(where) {  // layers cannot lie on another overlay
    for (const fs::path& folder : {layers / "upper", layers / "work", path}) fs::create_directories(folder);
    const std::string options = "lowerdir=" + lower.string() + ",upperdir=" + (layers / "upper").string() +
                                ",workdir=" + (layers / "work").string();
    mounted = disk.mounted && mount("overlay", path.c_str(), "overlay", 0, options.c_str()) == 0;
  }
  ~Overlay() {
    if (mounted) umount2(path.c_str(), MNT_DETACH);
  }
  SmallDisk disk;
  fs::path path;
  bool mounted = false;
};

TEST(Disk, ARunContinuesOnTheLowerLayerOfAnOverlay) {
  const Workplace place;
  const std::vector<std::string> words = {"--ranks", "1", "train.evaluate_every=5", "checkpoint.keep_last=2"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), words.begin(), words.end());
    return more;
  };
  for (const char* output : {"output=whole", "output=out"})
    ASSERT_EQ(run(place, with({"train.steps=20", output})).code, 0);
  ASSERT_EQ(run(place, with({"train.steps=40", "output=whole", "--resume"})).code, 0);
  const Overlay overlay(place.out(), place.folder() / "layers", place.folder() / "container");
  if (!overlay.mounted) GTEST_SKIP() << "mounting an overlay needs root and a kernel that has it";
  const Ended resumed = run(place, with({"train.steps=40", "output=container", "--resume"}));
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(resumed.lines().size(), 0u) << resumed.err;
  EXPECT_EQ(verified_step(overlay.path), 40);
  std::size_t checkpoints = 0;
  for (const auto& entry : fs::directory_iterator(overlay.path / "checkpoints")) {
    checkpoints += entry.path().filename().string().starts_with("step-") ? 1u : 0u;
  }
  EXPECT_EQ(checkpoints, 2u);
  EXPECT_TRUE(tensors(overlay.path / "best") == tensors(place.out("whole") / "best"));
  EXPECT_EQ(metrics(overlay.path).size(), 40u);
}

TEST(Disk, AnOldCheckpointThatCannotBeRemovedIsAWarning) {
  const Workplace place;
  const std::string step = "step-00000020";
  for (const char* asynchronous : {"false", "true"}) {
    const std::string set = std::string("checkpoint.asynchronous=") + asynchronous;
    const std::string out = std::string("out") + asynchronous, output = "output=" + out;
    ASSERT_EQ(run(place, {"--ranks", "1", "checkpoint.keep_last=1", "train.steps=20", output}).code, 0);
    const fs::path checkpoints = place.folder() / out / "checkpoints", pinned = checkpoints / step;
    fs::copy(pinned, place.folder() / ("copy" + out));
    const SmallDisk mounted(pinned, "1m");  // a mounted folder cannot be renamed
    if (!mounted.mounted) GTEST_SKIP() << "mounting a tmpfs needs root";
    fs::copy(place.folder() / ("copy" + out), pinned);
    const Ended ended =
        run(place, {"--ranks", "1", "checkpoint.keep_last=1", "train.steps=40", output, set, "--resume"});
    EXPECT_EQ(ended.code, 0) << ended.err;
    ASSERT_EQ(ended.lines().size(), 1u) << ended.err;
    EXPECT_NE(ended.lines().front().find("hawser: warning: an older checkpoint stays: "), std::string::npos);
    EXPECT_TRUE(fs::exists(pinned / "manifest.json"));
    EXPECT_EQ(verified_step(place.folder() / out), 40);
  }
}

TEST(Disk, OutputThatCannotBeMadeIsRejectedAtOnce) {
  const Workplace place;
  for (const char* ranks : {"1", "4"}) {
    const Ended ended = run(place, {"--ranks", ranks, "output=train.jsonl/out"});
    expect_rejection(ended, "train.jsonl/out: the folder is not writable");
    EXPECT_EQ(ended.err.find("step "), std::string::npos) << ended.err;
  }
}

TEST(Disk, FullWhileSaving) {
  const Workplace place;
  const SmallDisk disk(place.folder() / "disk", "700k");
  if (!disk.mounted) GTEST_SKIP() << "mounting a tmpfs needs root";
  for (const char* ranks : {"1", "4"}) {
    SCOPED_TRACE(ranks);
    const std::string out = std::string("disk/out") + ranks;
    const std::vector<std::string> words = {"--ranks", ranks, "output=" + out, "checkpoint.keep_last=9", "--resume"};
    expect_rejection(run(place, words), "no space left on the disk");
    const std::int64_t saved = verified_step(place.folder() / out);
    EXPECT_GE(saved, 5);
    EXPECT_FALSE(saving(place.folder() / out));
    // While the disk is still full, another attempt loses nothing.
    expect_rejection(run(place, words), "no space left on the disk");
    EXPECT_EQ(verified_step(place.folder() / out), saved);
    // With free space it continues.
    ASSERT_EQ(mount("", disk.path.c_str(), nullptr, MS_REMOUNT, "size=8m"), 0);
    const Ended resumed = run(place, {"--ranks", ranks, "output=" + out, "--resume"});
    EXPECT_EQ(resumed.code, 0) << resumed.err;
    fs::remove_all(place.folder() / out);
    ASSERT_EQ(mount("", disk.path.c_str(), nullptr, MS_REMOUNT, "size=700k"), 0);
  }
}

// The file-size limit simulates a disk that fills up in the middle of a write.
TEST(Disk, WriteThatFailsHalfWay) {
  const Workplace place;
  const std::vector<std::string> words = {"--ranks", "1", "train.steps=7"};
  ASSERT_EQ(run(place, words).code, 0);
  const std::vector<std::string> more = {"--ranks", "1", "train.steps=20", "--resume"};
  expect_rejection(run(place, more, 50 << 10), "file size limit exceeded");
  EXPECT_EQ(verified_step(place.out()), 7);
  EXPECT_FALSE(saving(place.out()));
  EXPECT_EQ(run(place, more).code, 0);
}

TEST(Disk, WriteThatFailsOnOneRank) {
  const Workplace place;
  Fit going(place, {"--ranks", "4", "train.steps=100000", "checkpoint.every_steps=5"});
  ASSERT_TRUE(eventually([&] { return newest_step(place.out()) >= 10 || !going.going(); }));
  const auto ranks = going.ranks();
  ASSERT_EQ(ranks.size(), 4u);
  const rlimit small{10 << 10, 10 << 10};
  ASSERT_EQ(prlimit(ranks.at(2), RLIMIT_FSIZE, &small, nullptr), 0);
  const Ended ended = going.wait();
  expect_rejection(ended, "rank 2: ");
  EXPECT_NE(ended.err.find("rank-00002.bin: file size limit exceeded"), std::string::npos) << ended.err;
  EXPECT_LT(ended.seconds, patient(10));
  EXPECT_GE(verified_step(place.out()), 10);
  EXPECT_FALSE(saving(place.out()));
}

// A run continues when its sinks fail: one line, then a count.
TEST(Disk, MetricsThatCannotBeWritten) {
  const Workplace place;
  for (const char* ranks : {"1", "4"}) {
    SCOPED_TRACE(ranks);
    Fit going(place, {"--ranks", ranks, "train.steps=100000", "checkpoint.every_steps=0", "report.tensorboard=true"});
    ASSERT_TRUE(eventually([&] { return metrics(place.out()).size() >= 10 || !going.going(); }));
    const pid_t first = going.rank(0);
    const rlimit small{100 << 10, RLIM_INFINITY};
    ASSERT_EQ(prlimit(first, RLIMIT_FSIZE, &small, nullptr), 0);
    const auto message = [&](const std::string& what) { return going.err().find(what) != std::string::npos; };
    ASSERT_TRUE(eventually([&] {
      return message("metrics.jsonl: file size limit exceeded") && message("warning: TensorBoard: ") &&
             message("step 1");
    })) << going.err();
    const std::size_t before = metrics(place.out()).size();
    const rlimit space{RLIM_INFINITY, RLIM_INFINITY};
    ASSERT_EQ(prlimit(first, RLIMIT_FSIZE, &space, nullptr), 0);
    // With free space it writes again, and the steps between are missing.
    ASSERT_TRUE(eventually([&] { return metrics(place.out()).size() > before + 10; }));
    ASSERT_EQ(kill(going.pid(), SIGTERM), 0);
    const Ended ended = going.wait();
    EXPECT_EQ(ended.code, 130) << ended.err;
    EXPECT_EQ(ended.lines().size(), 5u) << ended.err;  // two warnings, that it stops, two counts
    EXPECT_NE(ended.err.find("warning: metrics.jsonl: "), std::string::npos) << ended.err;
    EXPECT_NE(ended.err.find(" steps were not written"), std::string::npos) << ended.err;
    EXPECT_GT(verified_step(place.out()), 10);
    fs::remove_all(place.out());
  }
}

// A port in use, and a server that is not running.
TEST(Disk, UnreachableSinks) {
  const Workplace place;
  const Ended ended = run(place, {"--ranks", "1", "train.steps=5", "report.prometheus_port=1",
                                  "report.prometheus_address=192.0.2.1", "report.mlflow=http://127.0.0.1:1"});
  EXPECT_EQ(ended.code, 0) << ended.err;
  ASSERT_EQ(ended.lines().size(), 3u) << ended.err;
  EXPECT_NE(ended.err.find("hawser: warning: Prometheus: 192.0.2.1:1: cannot listen"), std::string::npos) << ended.err;
  EXPECT_NE(ended.err.find("hawser: warning: MLflow: http://127.0.0.1:1: "), std::string::npos) << ended.err;
  EXPECT_NE(ended.err.find("hawser: warning: MLflow: 5 of 5 steps were not written"), std::string::npos) << ended.err;
  EXPECT_EQ(metrics(place.out()).size(), 5u);
  EXPECT_TRUE(fs::exists(place.out() / "report.html"));
}

// An error that only rank 0 finds in the text is printed in one line by all.
TEST(Disk, TextThatCannotBeRead) {
  const Workplace place;
  std::ofstream(place.folder() / "train.jsonl", std::ios::app) << "{\"input_ids\": [1, 2,\n";
  expect_rejection(run(place, {"--ranks", "4"}), "train.jsonl");
}

}  // namespace disk_test
}  // namespace hawser::faults
