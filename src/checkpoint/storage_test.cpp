// Both storages, with the same expectations: POSIX files, and one in memory that has nothing but what storage.h says.
#include "checkpoint/storage.h"

#include <gtest/gtest.h>

#include "base/testing/temporary_folder.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/root.h"
#include "checkpoint/save.h"
#include "checkpoint/testing/memory_storage.h"
#include "checkpoint/testing/states.h"

namespace hawser::checkpoint {
namespace storage_test {

using namespace testing;  // NOLINT

struct PosixFiles {
  TemporaryFolder folder;
  std::string root = folder / "run";
};
struct Memory {
  Memory() {
    auto made = std::make_unique<MemoryStorage>();
    storage = made.get();
    register_storage("memory://", std::move(made));
  }
  MemoryStorage* storage = nullptr;
  std::string root = "memory://run";
};

template <class Kind>
class Storages : public ::testing::Test {
 protected:
  const std::string& root() const { return kind_.root; }
  std::string checkpoints() const { return root() + "/checkpoints"; }
  std::string step(std::int64_t number) const { return cat(checkpoints(), "/", step_name(number)); }
  std::string save_step(std::int64_t number, int world = 2) {
    return save({.root = checkpoints(), .step = number}, cut_flat(kSpecs, world, static_cast<std::uint64_t>(number)));
  }
  static bool holds(Checkpoint& checkpoint, std::uint64_t version) {
    const auto wanted = cut_flat(kSpecs, 1);
    checkpoint.read(wanted[0].states);
    return wanted[0].holds(version);
  }
  static inline const std::vector<Spec> kSpecs{{"w", {40, 33}}, {"n", {33}, DType::bf16}};
  Kind kind_;
};
using Kinds = ::testing::Types<PosixFiles, Memory>;
TYPED_TEST_SUITE(Storages, Kinds);

TYPED_TEST(Storages, ObjectsAreReadByRange) {
  Storage& storage = storage_of(this->root());
  const std::string path = this->root() + "/step-00000001", part = "0123456789";
  const auto staging = storage.stage(path, "a", 20);
  {
    const auto object = staging->create("a", 20);
    object->write(0, reinterpret_cast<const std::byte*>(part.data()), 10);
    object->write(12, reinterpret_cast<const std::byte*>(part.data()), 8);
    object->finish();
  }
  EXPECT_TRUE(storage.list(this->root()).empty()) << "not before the commit";
  EXPECT_THROW(storage.open(path), UserError);
  staging->commit("last", "text", {{"a", 20}});
  EXPECT_EQ(storage.list(this->root()), std::vector<std::string>{"step-00000001"});
  const auto set = storage.open(path);
  EXPECT_TRUE(set->has("a") && set->has("last"));
  EXPECT_FALSE(set->has("b"));
  EXPECT_EQ(set->bytes("a"), 20);
  std::string read(6, 'x');
  set->read("a", 8, reinterpret_cast<std::byte*>(read.data()), 6);
  EXPECT_EQ(read, std::string("89\0\0"
                              "01",
                              6));
  EXPECT_EQ(set->read_text("last", 4), "text");
  EXPECT_THROW(set->read_text("last", 3), UserError);
  EXPECT_THROW(set->read("a", 15, reinterpret_cast<std::byte*>(read.data()), 6), UserError);
  EXPECT_THROW(set->bytes("b"), UserError);
}

// Another process lost an object, or wrote to another disk.
TYPED_TEST(Storages, ACommitWhoseConditionFailsChangesNothing) {
  Storage& storage = storage_of(this->root());
  this->save_step(1);
  for (const ObjectSize& wrong : {ObjectSize{"rank-00000.bin", 3}, ObjectSize{"rank-00001.bin", 4}}) {
    const auto staging = storage.stage(this->step(1), "rank-00000.bin", 0);
    staging->put("rank-00000.bin", "four");
    EXPECT_THROW(staging->commit("manifest.json", "{}", {wrong}), UserError);
  }
  auto checkpoint = Checkpoint::open(this->step(1));
  EXPECT_TRUE(this->holds(checkpoint, 1));
  EXPECT_EQ(storage.list(this->checkpoints()).size(), 1u);
}

TYPED_TEST(Storages, ARankThatFailsTakesItsObjectsBack) {
  Storage& storage = storage_of(this->root());
  const auto owner = storage.stage(this->step(1), "rank-00000.bin", 0);
  owner->put("rank-00000.bin", "zero");
  storage.join(this->step(1), owner->ticket())->put("rank-00001.bin", "lost");
  const auto other = storage.join(this->step(1), owner->ticket());
  other->put("rank-00001.bin", "one");
  other->hand_over();
  owner->commit("last", "", {{"rank-00000.bin", 4}, {"rank-00001.bin", 3}});
  EXPECT_EQ(storage.open(this->step(1))->read_text("rank-00001.bin", 9), "one");
}

TYPED_TEST(Storages, CheckpointsAreSavedKeptAndRemoved) {
  const std::string best = this->root() + "/best";
  for (const int number : {1, 2, 3}) this->save_step(number, number);
  this->save_step(3, 4);  // in place of the first
  keep_also_as(this->step(2), best);
  {
    auto reader = Checkpoint::open(this->step(2)), of_best = Checkpoint::open(best);
    keep_also_as(this->step(3), best);
    keep_last(this->checkpoints(), 1);
    EXPECT_TRUE(this->holds(reader, 2));
    EXPECT_TRUE(this->holds(of_best, 2)) << "of what was best when it was opened";
    auto now = Checkpoint::open(best);
    EXPECT_TRUE(this->holds(now, 3));
  }
  keep_last(this->checkpoints(), 1);
  EXPECT_EQ(storage_of(this->root()).list(this->checkpoints()), std::vector<std::string>{"step-00000003"});
  Problems skipped;
  auto newest = Checkpoint::latest(this->checkpoints(), skipped);
  ASSERT_TRUE(newest);
  EXPECT_TRUE(skipped.empty() && this->holds(*newest, 3));
  EXPECT_EQ(complete_before(best), this->step(3));
}

TYPED_TEST(Storages, ACorruptCheckpointIsSetAsideUnderAFreeName) {
  for (int i = 0; i < 3; ++i) {
    this->save_step(7);
    const std::string expected = cat(this->checkpoints(), "/damaged-step-00000007", i > 0 ? cat("-", i + 1) : "");
    EXPECT_EQ(set_aside_corrupt(this->step(7)), expected);
  }
  EXPECT_TRUE(step_folders(this->checkpoints()).empty());
}

TYPED_TEST(Storages, ASessionThatEndsWithoutCommitLeavesNothing) {
  {
    const SaveSession session = SaveSession::begin({.root = this->checkpoints(), .step = 1});
    EXPECT_FALSE(session.ticket().empty());
  }
  EXPECT_TRUE(storage_of(this->root()).list(this->checkpoints()).empty());
  if constexpr (std::is_same_v<TypeParam, Memory>) {
    EXPECT_EQ(this->kind_.storage->staged(), 0u);
  }
}

TEST(MemoryStorage, ChangedBytesAreFound) {
  const Memory memory;
  const std::vector<Spec> specs{{"w", {8}}};
  const std::string folder = save({.root = memory.root, .step = 1}, cut_flat(specs, 1, 1));
  memory.storage->damage(folder, "rank-00000.bin", 5);
  Problems problems;
  Checkpoint::open(folder).verify(problems);
  expect_line(problems.lines(), "memory://run/step-00000001/rank-00000.bin: checksum mismatch");
}

TEST(Storage, SplitsPaths) {
  const auto joined = [](const std::string& path) { return split_path(path).parent + "|" + split_path(path).name; };
  EXPECT_EQ(joined("a/b/c"), "a/b|c");
  EXPECT_EQ(joined("a/b//"), "a|b");
  EXPECT_EQ(joined("b"), ".|b");
  EXPECT_EQ(joined("/b"), "/|b");
}

}  // namespace storage_test
}  // namespace hawser::checkpoint
