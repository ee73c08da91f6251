#include "io/mapped_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

#include "base/testing/temporary_folder.h"
#include "io/files.h"

namespace hawser::io {
namespace mapped_file_test {

namespace fs = std::filesystem;

TEST(MappedFile, KnowsWhetherItsFileChanged) {
  const TemporaryFolder folder;
  const std::string path = folder.path("ids.bin");
  EXPECT_FALSE(MappedFile().changed());
  folder.write("ids.bin", "abcd");
  {
    const MappedFile file(path);
    EXPECT_FALSE(file.changed());
    ASSERT_EQ(truncate(path.c_str(), 2), 0);
    EXPECT_TRUE(file.changed());
  }
  const auto now = fs::last_write_time(path);
  const MappedFile file(path);
  EXPECT_FALSE(file.changed());
  fs::last_write_time(path, now + std::chrono::nanoseconds(1));
  EXPECT_TRUE(file.changed());
}

TEST(MappedFile, ReadsTheOpenedFileUnderAnyName) {
  const TemporaryFolder folder;
  folder.write("ids.bin", "abcd");
  const MappedFile file(folder.path("ids.bin"));
  write_text_atomically(folder.path("ids.bin"), "efgh");
  EXPECT_FALSE(file.changed());
  EXPECT_EQ(file.text(), "abcd");
  fs::remove(folder.path("ids.bin"));
  EXPECT_FALSE(file.changed());
}

// Released pages are read again, whatever part of the file it is, up to its end and beyond.
TEST(MappedFile, ReleasedBytesAreReadAgain) {
  const TemporaryFolder folder;
  std::string text(3 * 4096 + 100, ' ');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>('a' + i % 23);
  folder.write("ids.bin", text);
  const MappedFile file(folder.path("ids.bin"));
  for (const auto& [offset, size] : {std::pair{0, 1 << 20}, {1, 5000}, {4096, 4096}, {100, 10}, {12300, 88}, {0, 0}}) {
    EXPECT_EQ(file.text(), text);
    file.release(static_cast<std::size_t>(offset), static_cast<std::size_t>(size));
    EXPECT_EQ(file.text(), text) << offset << " " << size;
  }
  MappedFile().release(0, 10);
}

TEST(MappedFile, IsFoundByItsAddresses) {
  const TemporaryFolder folder;
  folder.write("a\nb", "abcd");
  folder.write("empty", "");
  folder.write("other", "efgh");
  const MappedFile empty(folder.path("empty")), other(folder.path("other"));
  std::optional<MappedFile> file(folder.path("a\nb"));
  const std::byte* const begin = file->bytes().data();
  EXPECT_STREQ(mapped_path(begin), folder.path("a b").c_str());
  EXPECT_STREQ(mapped_path(begin + 3), folder.path("a b").c_str());
  EXPECT_EQ(mapped_path(begin + 4), nullptr);
  EXPECT_EQ(mapped_path(begin - 1), nullptr);
  EXPECT_EQ(mapped_path(nullptr), nullptr);
  std::optional<MappedFile> moved(std::move(*file));
  file.reset();
  EXPECT_STREQ(mapped_path(begin), folder.path("a b").c_str());
  moved.reset();
  EXPECT_EQ(mapped_path(begin), nullptr);
  EXPECT_STREQ(mapped_path(other.bytes().data()), folder.path("other").c_str());
}

}  // namespace mapped_file_test
}  // namespace hawser::io
