#include "prepare/byte_reader.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "base/philox.h"
#include "base/testing/temporary_folder.h"
#include "prepare/testing/archives.h"

namespace hawser::prepare {
namespace byte_reader_test {

// Random words, so that an archive of them has many blocks.
std::string words(int count) {
  const RandomStream random(1, "words");
  std::string text;
  for (int i = 0; i < count; ++i) text += "w" + std::to_string(random.below(100000, i)) + (i % 9 == 0 ? "\n" : " ");
  return text;
}

class ByteReaderTest : public ::testing::Test {
 protected:
  std::string rejection(const std::string& name) {
    try {
      read_all_bytes(folder_.path(name));
    } catch (const UserError& error) {
      return std::string(error.what()).substr(folder_.path("").size());
    }
    return "accepted";
  }
  TemporaryFolder folder_;
};

TEST_F(ByteReaderTest, ReadsTheSameTextFromEveryFormat) {
  const std::string text = words(300000), half = text.substr(0, text.size() / 2), rest = text.substr(half.size());
  folder_.write("a.txt", text);
  folder_.write("a.txt.gz", gzip(text));
  folder_.write("a.txt.zst", zstd(text));
  folder_.write("members.txt.gz", gzip(half) + gzip("") + gzip(rest));
  folder_.write("padded.txt.gz", gzip(half) + gzip(rest) + std::string(1000, '\0'));
  folder_.write("frames.txt.zst", zstd(half) + zstd("") + zstd(rest));
  for (const char* name : {"a.txt", "a.txt.gz", "a.txt.zst", "members.txt.gz", "padded.txt.gz", "frames.txt.zst"}) {
    EXPECT_TRUE(read_all_bytes(folder_.path(name)) == text) << name;
    // In pieces of varying size, after a skip.
    const auto reader = open_bytes(folder_.path(name));
    reader->skip(1000003);
    std::string read(text.size(), '\0');
    std::size_t size = 0;
    for (std::size_t piece = 1; std::size_t got = reader->read(std::span(read).subspan(size, piece));
         piece = std::min<std::size_t>(piece * 3 + 1, read.size() - size)) {
      size += got;
    }
    EXPECT_TRUE(read.substr(0, size) == text.substr(1000003)) << name;
    EXPECT_EQ(static_cast<std::uintmax_t>(reader->file_bytes()), std::filesystem::file_size(folder_.path(name)));
  }
}

TEST_F(ByteReaderTest, RejectsCorruptArchives) {
  const std::string text = words(100000);
  for (const auto& [ending, kind, whole] :
       {std::tuple(".gz", "gzip", gzip(text)), std::tuple(".zst", "zstd", zstd(text))}) {
    const std::string name = std::string("a.txt") + ending;
    const auto rejected = [&](const std::string& bytes) {
      folder_.write(name, bytes);
      return rejection(name);
    };
    EXPECT_EQ(rejected(whole), "accepted");
    EXPECT_EQ(rejected("{\"text\": \"not an archive\"}\n"),
              cat(name, ": not a ", kind, " archive; try a file extension that matches the contents"));
    EXPECT_EQ(rejected(""), cat(name, ": not a ", kind, " archive; try a file extension that matches the contents"));
    for (const std::size_t size : {whole.size() - 1, whole.size() - 4, whole.size() / 2, std::size_t{12}}) {
      EXPECT_EQ(rejected(whole.substr(0, size)), cat(name, ": ", kind, " archive cut short at byte ", size));
    }
    EXPECT_EQ(rejected(whole + "rest").substr(0, name.size() + 10), name + ": corrupt ") << rejection(name);
    // A flipped bit is either detected or does not change the text.
    const RandomStream random(2, kind);
    for (int i = 0; i < 100; ++i) {
      std::string broken = whole;
      broken[random.below(broken.size(), 2 * i)] ^= static_cast<char>(1 << random.below(8, 2 * i + 1));
      folder_.write(name, broken);
      const std::string line = rejection(name);
      if (line == "accepted") {
        EXPECT_TRUE(read_all_bytes(folder_.path(name)) == text) << i;  // an unused bit, as in gzip's header
      } else {
        EXPECT_TRUE(line.starts_with(name + ": ")) << line;
      }
    }
  }
}

TEST_F(ByteReaderTest, RejectsALargeZstdWindow) {
  folder_.write("far.txt.zst", zstd(words(1000), 30));
  EXPECT_EQ(rejection("far.txt.zst"),
            "far.txt.zst: zstd window too large (expected at most 128 MiB); try zstd without --long, or "
            "with --long=27");
}

// Four kilobytes may unpack to gigabytes: what is read is bounded, not what is on the disk.
TEST_F(ByteReaderTest, ContentsBeyondTheLimitAreRejected) {
  const std::string text(1 << 20, 'a');
  for (const auto& [name, bytes] : {std::pair("a.txt", text), std::pair("a.txt.gz", gzip(text))}) {
    const std::string path = folder_.write(name, bytes);
    EXPECT_EQ(read_all_bytes(path, 1 << 20), text);
    try {
      read_all_bytes(path, (1 << 20) - 1);
      ADD_FAILURE() << name;
    } catch (const UserError& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with(path + ": too large to be read at once (expected at most "))
          << error.what();
    }
  }
}

}  // namespace byte_reader_test
}  // namespace hawser::prepare
