// Token files that another process changes while a run reads them: one line, exit code 2, and older checkpoints as they
// were.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>

#include "harness.h"

namespace hawser::faults {
namespace changed_data_test {

using Words = std::vector<std::string>;

// Synchronous and asynchronous saves, one rank and two; steps do not end before the change.
const std::vector<Words> kKinds = {
    {"--ranks", "1", "checkpoint.asynchronous=false", "train.steps=100000"},
    {"--ranks", "1", "checkpoint.asynchronous=true", "train.steps=100000"},
    {"--ranks", "2", "checkpoint.asynchronous=true", "train.steps=100000"},
};

Words with(Words words, const std::string& more) {
  words.push_back(more);
  return words;
}

// Starts a run, lets `change` change a file of its data after step 20, and expects the line; no later step is saved
// than those before the change.
void expect_end(const Words& words, const fs::path& file, const std::function<void(const fs::path&)>& change,
                const std::string& line) {
  const Workplace place;
  Fit going(place, words);
  ASSERT_TRUE(eventually([&] { return metrics(place.out()).size() >= 20 || !going.going(); }));
  const fs::path path = place.out() / "data" / file;
  change(path);
  const std::int64_t changed_after = static_cast<std::int64_t>(metrics(place.out()).size());
  const Ended ended = going.wait();
  EXPECT_EQ(ended.code, 2) << ended.err;
  ASSERT_EQ(ended.lines().size(), 1u) << ended.err;
  EXPECT_NE(ended.lines().front().find((fs::path("out/data") / file).string() + ": " + line), std::string::npos)
      << ended.err;
  // In flight during the change: two steps and a save.
  if (newest_step(place.out()) > 0) EXPECT_LE(verified_step(place.out()), changed_after + 7);
}

// Within the last page: what is missing reads as zeros.
void cut_short(const fs::path& path) {
  ASSERT_EQ(truncate(path.c_str(), static_cast<off_t>(fs::file_size(path) - 100)), 0);
}

void remove_all_bytes(const fs::path& path) {
  ASSERT_EQ(truncate(path.c_str(), 0), 0);
}

// In place, with equal size: the ids in reverse order, or all of them `id`.
void rewrite(const fs::path& path, std::optional<std::uint16_t> id = std::nullopt) {
  std::vector<std::uint16_t> ids(fs::file_size(path) / 2);
  const auto size = static_cast<std::streamsize>(ids.size() * 2);
  std::fstream stream(path, std::ios::binary | std::ios::in | std::ios::out);
  stream.read(reinterpret_cast<char*>(ids.data()), size);
  std::reverse(ids.begin(), ids.end());
  if (id) std::fill(ids.begin(), ids.end(), *id);
  stream.seekp(0);
  stream.write(reinterpret_cast<const char*>(ids.data()), size);
  ASSERT_TRUE(stream.flush());
}

void reverse(const fs::path& path) {
  rewrite(path);
}
void write_unknown_ids(const fs::path& path) {
  rewrite(path, 999);
}

constexpr const char* kChanged = "the file has changed while it was read";

TEST(ChangedData, NoLaterStepIsSaved) {
  for (const Words& words : kKinds) {
    SCOPED_TRACE(words[1] + " " + words[2]);
    expect_end(words, "train.bin", reverse, kChanged);
    expect_end(words, "train.bin", write_unknown_ids, kChanged);
    expect_end(words, "train.bin", cut_short, kChanged);
  }
}

TEST(ChangedData, AnEvaluationFindsIt) {
  for (const Words& words : {kKinds[0], kKinds[2]}) {
    SCOPED_TRACE(words[1]);
    const Words evaluating = with(with(words, "train.evaluate_every=5"), "checkpoint.every_steps=1000000");
    expect_end(evaluating, "valid.bin", cut_short, kChanged);
  }
}

TEST(ChangedData, MissingPagesEndTheRunWithALine) {
  for (const Words& words : kKinds) {
    SCOPED_TRACE(words[1] + " " + words[2]);
    expect_end(with(words, "checkpoint.every_steps=1000000"), "train.bin", remove_all_bytes,
               "the file was cut short while it was read");
  }
}

// A file that takes the name of an open one changes nothing.
TEST(ChangedData, AReplacedFileIsReadToTheEnd) {
  const Workplace place;
  ASSERT_EQ(run(place, {"--ranks", "1", "output=whole"}).code, 0);
  Fit going(place, {"--ranks", "1"});
  ASSERT_TRUE(eventually([&] { return metrics(place.out()).size() >= 20 || !going.going(); }));
  const fs::path path = place.out() / "data/train.bin", other = place.out() / "data/other.bin";
  fs::copy_file(path, other);
  reverse(other);
  fs::rename(other, path);
  const Ended ended = going.wait();
  EXPECT_EQ(ended.code, 0) << ended.err;
  expect_equal_runs(place.out("whole"), place.out(), 300);
}

}  // namespace changed_data_test
}  // namespace hawser::faults
