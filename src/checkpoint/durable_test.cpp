// A checkpoint and an export get their names only when their bytes are on disk, also on file systems that cannot swap or
// rename folders, and without hard links or locks.
#include <gtest/gtest.h>

#include <functional>

#include "base/testing/system_calls.h"
#include "base/testing/temporary_folder.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/formats/safetensors.h"
#include "checkpoint/formats/safetensors_writer.h"
#include "checkpoint/root.h"
#include "checkpoint/save.h"
#include "checkpoint/testing/states.h"

namespace hawser::checkpoint {
namespace durable_test {

using namespace testing;  // NOLINT
using Lines = SystemCalls::Lines;

const std::vector<Spec> kSpecs{{"w", {40, 33}}, {"norm", {33}}};

void save_version(const std::string& root, std::int64_t step, std::uint64_t version) {
  save({.root = root, .step = step}, cut_flat(kSpecs, 2, version));
}

bool holds(const std::string& folder, std::uint64_t version) {
  Checkpoint checkpoint = Checkpoint::open(folder);
  const auto wanted = cut_flat(kSpecs, 1);
  checkpoint.read(wanted[0].states);
  return wanted[0].holds(version);
}

// What a file system may lack.
struct Lack {
  const char* name;
  std::function<void(SystemCalls&)> fail;
};

const std::vector<Lack> kFileSystems{
    {"nothing", [](SystemCalls&) {}},
    {"swaps", [](SystemCalls& calls) { calls.fail("exchange", EINVAL); }},
    {"swaps and renames of folders of a lower layer",
     [](SystemCalls& calls) {
       calls.fail("exchange", EXDEV);
       calls.fail("rename", EXDEV, ".trash-");
       calls.fail("rename", EXDEV, ".best.tmp-");
     }},
    {"hard links", [](SystemCalls& calls) { calls.fail("link", EPERM); }},
    {"locks", [](SystemCalls& calls) { calls.fail("flock", ENOLCK); }},
};

TEST(Durable, CheckpointsAreOnDiskBeforeTheyHaveTheirNames) {
  for (const Lack& lack : kFileSystems) {
    SCOPED_TRACE(lack.name);
    const TemporaryFolder folder;
    const std::string root = folder.path("checkpoints"), best = folder.path("best"), step = root + "/" + step_name(1);
    SystemCalls calls(folder.path());
    lack.fail(calls);
    const auto expect_durable = [&](const char* doing) { EXPECT_EQ(calls.not_durable(), Lines()) << doing; };
    save_version(root, 1, 1);
    expect_durable("save");
    EXPECT_TRUE(holds(step, 1));
    save_version(root, 1, 2);
    expect_durable("save in place of another");
    EXPECT_TRUE(holds(step, 2));
    keep_also_as(step, best);
    expect_durable("best");
    EXPECT_TRUE(holds(best, 2));
    save_version(root, 2, 3);
    keep_also_as(root + "/" + step_name(2), best);
    expect_durable("best in place of another");
    EXPECT_TRUE(holds(best, 3));
    EXPECT_TRUE(holds(step, 2));
    EXPECT_EQ(keep_last(root, 1), Lines{step});
    expect_durable("removal");
    EXPECT_FALSE(io::exists(step));
    set_aside_corrupt(root + "/" + step_name(2));
    EXPECT_EQ(calls.log().back().substr(0, 5), "fsync");
    expect_durable("rename");
    EXPECT_EQ(io::list_folder(folder.path()), (Lines{"best", "checkpoints"}));
  }
}

// The order of one save: every rank's file, the manifest, the folder, and then the name.
TEST(Durable, TheManifestIsTheLastFileAndTheNameComesAfterAllOfThem) {
  const TemporaryFolder folder;
  SystemCalls calls(folder.path());
  save_version(folder.path(), 1, 1);
  Lines log;
  for (std::string line : calls.log()) {  // without the random part of the folder's name
    if (const auto at = line.find(".tmp-"); at != std::string::npos) line.erase(at + 4, 17);
    log.push_back(line);
  }
  const std::string staged = ".step-00000001.tmp";
  EXPECT_EQ(log, (Lines{"write " + staged + "/rank-00000.bin", "fsync " + staged + "/rank-00000.bin",
                        "write " + staged + "/rank-00001.bin", "fsync " + staged + "/rank-00001.bin",
                        "write " + staged + "/manifest.json", "fsync " + staged + "/manifest.json", "fsync " + staged,
                        "rename " + staged + " step-00000001", "fsync ."}));
}

// Removed in place, a checkpoint has no manifest before any other file is gone, and a crash leaves none that looks
// complete.
TEST(Durable, ACheckpointThatCannotBeRenamedLosesItsManifestFirst) {
  const TemporaryFolder folder;
  for (const int step : {1, 2}) save_version(folder.path(), step, 1);
  const std::string old = folder.path(step_name(1));
  SystemCalls calls(folder.path());
  calls.fail("rename", EXDEV, ".trash-");
  bool manifest_was_first = false;
  calls.observe([&](const std::string& line) {
    if (line != "fsync step-00000001") return;
    manifest_was_first = !io::exists(old + "/manifest.json") && io::exists(old + "/rank-00000.bin");
  });
  keep_last(folder.path(), 1);
  EXPECT_TRUE(manifest_was_first);
  EXPECT_FALSE(io::exists(old));
  EXPECT_EQ(calls.log().back(), "fsync .");
  // Renamed to the trash, it is gone before its files are.
  save_version(folder.path(), 3, 1);
  calls.stop_failing();
  keep_last(folder.path(), 1);
  EXPECT_EQ(calls.log().back(), "fsync .");
}

// A crash in keep_also_as left its copy alone.
TEST(Durable, ACopyThatIsFinishedLaterGetsADurableName) {
  const TemporaryFolder folder;
  const std::string best = folder.path("best"), left = folder.path(".best.tmp-0123456789abcdef");
  save_version(folder.path(), 1, 1);
  io::rename_path(folder.path(step_name(1)), left);
  SystemCalls calls(folder.path());
  finish_keep(best);
  EXPECT_EQ(calls.log(), (Lines{"rename .best.tmp-0123456789abcdef best", "fsync ."}));
  EXPECT_TRUE(holds(best, 1));
}

TEST(Durable, ExportsAreOnDiskBeforeTheyHaveTheirNames) {
  std::vector<float> values(100);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const TensorView view(reinterpret_cast<std::byte*>(values.data()), DType::f32, {100}, DeviceKind::cpu);
  for (const bool swaps : {true, false}) {
    const TemporaryFolder folder;
    SystemCalls calls(folder.path());
    if (!swaps) calls.fail("exchange", EINVAL);
    for (const bool replace : {false, true}) {
      for (const std::int64_t max_shard_bytes : {std::int64_t{1000}, std::int64_t{100}}) {
        SafetensorsWriter writer(folder.path("out"), {{"a", {100}, DType::f32}, {"b", {100}, DType::bf16}},
                                 {.max_shard_bytes = max_shard_bytes, .replace = replace || max_shard_bytes == 100});
        writer.add_file("config.json", "{}");
        writer.add_file("tool_use.jinja", "x", "additional_chat_templates");
        writer.append(view);
        writer.append(view);
        writer.finish();
        EXPECT_EQ(calls.not_durable(), Lines()) << swaps << replace << max_shard_bytes;
        if (max_shard_bytes == 1000) io::remove_tree(folder.path("out/additional_chat_templates"));
      }
      io::remove_tree(folder.path("out/additional_chat_templates"));
    }
  }
}

}  // namespace durable_test
}  // namespace hawser::checkpoint
