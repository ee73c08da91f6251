#include "prepare/token_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/testing/temporary_folder.h"
#include "prepare/identity.h"

namespace hawser::prepare {
namespace token_file_test {

using Ids = std::vector<std::int32_t>;

Ids all_ids(const TokenFile& file) {
  Ids ids(file.tokens());
  file.read(0, ids);
  return ids;
}

class TokenFileTest : public ::testing::Test {
 protected:
  // Two documents; the first has two sequences.
  void write(std::int64_t vocab_size) {
    TokenFileWriter writer(prefix_, vocab_size);
    writer.add_sequence(Ids{1, 2, 3});
    writer.add_sequence(Ids{4});
    writer.end_document();
    writer.add_sequence(Ids{5, 60000});
    writer.finish();
  }
  std::string rejection() {
    try {
      TokenFile file(prefix_);
    } catch (const UserError& error) {
      const std::string text = error.what();
      return text.substr(folder_.path("").size());
    }
    return "accepted";
  }
  // Overwrites bytes of the index.
  template <class T>
  void patch(std::size_t at, T value) {
    std::string text = read_file(prefix_ + ".idx");
    std::memcpy(text.data() + at, &value, sizeof value);
    std::ofstream(prefix_ + ".idx", std::ios::binary) << text;
  }
  TemporaryFolder folder_;
  std::string prefix_ = folder_.path("train");
};

TEST_F(TokenFileTest, WritesMegatronsLayoutByteForByte) {
  write(65000);
  const std::string index = read_file(prefix_ + ".idx");
  std::string expected("MMIDIDX\0\0\1\0\0\0\0\0\0\0\10\3\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0", 34);
  for (const std::int32_t length : {3, 1, 2}) expected.append(reinterpret_cast<const char*>(&length), 4);
  for (const std::int64_t value : {0, 6, 8, 0, 2, 3}) expected.append(reinterpret_cast<const char*>(&value), 8);
  EXPECT_EQ(index, expected);
  EXPECT_EQ(read_file(prefix_ + ".bin"), std::string("\1\0\2\0\3\0\4\0\5\0\x60\xEA", 12));
}

TEST_F(TokenFileTest, ReadsBackWhatItWrote) {
  for (const std::int64_t vocab_size : {65499, 65500, 0}) {
    write(vocab_size);
    const TokenFile file(prefix_);
    EXPECT_EQ(std::filesystem::file_size(prefix_ + ".bin"), vocab_size == 65499 ? 12u : 24u);
    EXPECT_EQ(file.sequences(), 3);
    EXPECT_EQ(file.documents(), 2);
    EXPECT_EQ(file.first_sequence(1), 2);
    EXPECT_EQ(file.begin(2), 4);
    EXPECT_EQ(file.length(2), 2);
    EXPECT_EQ(all_ids(file), (Ids{1, 2, 3, 4, 5, 60000}));
    EXPECT_FALSE(file.has_labels());
    EXPECT_NO_THROW(file.check_ids(60001));
    EXPECT_THROW(file.check_ids(60000), UserError);
  }
}

// More sequences and tokens than are copied, checked or hashed at a time.
TEST_F(TokenFileTest, LargeFilesAreReadAndWrittenInBlocks) {
  const auto write_large = [&](std::int64_t sequences, std::int32_t length, std::int64_t changed,
                               std::int64_t changed_label, std::int64_t longer) {
    TokenFileWriter writer(prefix_, 60000);
    Ids ids, labels;
    std::int64_t at = 0;
    for (std::int64_t s = 0; s < sequences; ++s) {
      ids.clear();
      labels.clear();
      const std::int32_t more = s == longer ? 1 : s == longer + 1 ? -1 : 0;
      for (std::int32_t i = 0; i < length + more; ++i, ++at) {
        ids.push_back(at == changed ? 50000 : static_cast<std::int32_t>(at % 1000));
        labels.push_back(at == changed_label ? 50000 : ids.back());
      }
      writer.add_sequence(ids,
                          changed_label >= 0 ? std::span<const std::int32_t>(labels) : std::span<const std::int32_t>());
      writer.end_document();
    }
    writer.finish();
    return TokenFile(prefix_);
  };
  constexpr std::int64_t kSequences = 20000, kNone = 1 << 30;  // 100,000 tokens
  const DataIdentity whole = identity_of(write_large(kSequences, 5, kNone, -1, kNone));
  const TokenFile file = write_large(kSequences, 5, 99'000, -1, 19'000);
  EXPECT_EQ(file.sequences(), kSequences);
  EXPECT_EQ(file.begin(19'001), 95'006);
  EXPECT_EQ(file.length(19'001), 4);
  EXPECT_EQ(file.first_sequence(19'500), 19'500);
  EXPECT_NO_THROW(file.check_ids(50001));
  EXPECT_THROW(file.check_ids(1000), UserError) << "an id of the second block";
  EXPECT_NE(identity_of(write_large(kSequences, 5, 99'000, -1, kNone)), whole) << "an id";
  EXPECT_NE(identity_of(write_large(kSequences, 5, kNone, -1, 19'000)), whole) << "a boundary";
  const DataIdentity labeled = identity_of(write_large(kSequences, 5, kNone, kNone, kNone));
  const TokenFile other = write_large(kSequences, 5, kNone, 99'000, kNone);
  EXPECT_NE(identity_of(other), labeled) << "a label";
  EXPECT_THROW(other.check_ids(1000), UserError) << "a label of the second block";
  // Above 4M tokens, blocks of the file are hashed; the tenth of 256 is one.
  constexpr std::int64_t kLong = 4'400'000;
  const std::int64_t block = (kLong - (1 << 14)) / 255 * 10;
  EXPECT_NE(identity_of(write_large(1, kLong, block + 5, -1, kNone)),
            identity_of(write_large(1, kLong, kNone, -1, kNone)));
}

TEST_F(TokenFileTest, FillsInLabelsBeforeTheFirst) {
  TokenFileWriter writer(prefix_, 100);
  writer.add_sequence(Ids{1, 2, 3});
  writer.end_document();
  writer.add_sequence(Ids{4, 5}, Ids{kIgnoredLabel, 5});
  writer.end_document();
  writer.add_sequence(Ids{6});
  writer.finish();
  const TokenFile file(prefix_);
  Ids labels(6);
  file.read_labels(0, labels, 100);
  EXPECT_EQ(labels, (Ids{1, 2, 3, kIgnoredLabel, 5, 6}));
  write(100000);  // removes the old labels
  EXPECT_FALSE(TokenFile(prefix_).has_labels());
}

TEST_F(TokenFileTest, LeavesNothingWithoutFinish) {
  {
    TokenFileWriter writer(prefix_, 100);
    writer.add_sequence(Ids{1, 2}, Ids{1, 2});
  }
  EXPECT_EQ(folder_.count(), 0u);
  write(100000);
  {
    TokenFileWriter writer(prefix_, 100);
    writer.add_sequence(Ids{9});
  }
  EXPECT_EQ(TokenFile(prefix_).tokens(), 6);
  EXPECT_THROW(TokenFileWriter(folder_.path("no/such/folder"), 10), UserError);
}

TEST_F(TokenFileTest, RejectsInvalidFiles) {
  EXPECT_EQ(rejection(), "train.idx: cannot read: No such file or directory");
  const auto fresh = [&] { write(65000); };
  fresh();
  patch(0, 'X');
  EXPECT_EQ(rejection(), "train.idx: not a token index (expected MMIDIDX, got other bytes) at byte 0");
  fresh();
  patch(9, std::uint64_t{2});
  EXPECT_EQ(rejection(), "train.idx: unknown version of token index (expected 1, got 2) at byte 9");
  fresh();
  patch(17, std::uint8_t{6});
  EXPECT_EQ(rejection(), "train.idx: token type not supported (expected 4 (int32) or 8 (uint16), got 6) at byte 17");
  for (const std::uint64_t count : {std::uint64_t{4}, std::uint64_t{0}, std::uint64_t{1} << 60, ~std::uint64_t{0}}) {
    fresh();
    patch(18, count);
    EXPECT_EQ(rejection().substr(0, 41), "train.idx: token index has the wrong size") << count;
    fresh();
    patch(26, count);
    EXPECT_EQ(rejection().substr(0, 41), "train.idx: token index has the wrong size") << count;
  }
  fresh();
  patch(34, std::int32_t{-3});
  EXPECT_EQ(rejection(), "train.idx: negative length of a sequence (expected 0 or more, got -3) at sequence 0");
  fresh();
  patch(34 + 12 + 8, std::int64_t{4});
  EXPECT_EQ(rejection(), "train.idx: sequences overlap (expected offset 6, got 4) at sequence 1");
  fresh();
  patch(34 + 12 + 8, std::int64_t{8});
  EXPECT_EQ(rejection(), "train.idx: gap between sequences (expected offset 6, got 8) at sequence 1");
  fresh();
  patch(34 + 36 + 8, std::int64_t{7});
  EXPECT_EQ(rejection(), "train.idx: document bounds do not add up (expected 0 to 3, got 7) at document 1");
  fresh();
  std::filesystem::resize_file(prefix_ + ".bin", 11);
  EXPECT_EQ(rejection(), "train.bin: token file cut short (expected 12 bytes or more, got 11) at sequence 2");
  fresh();
  std::filesystem::resize_file(prefix_ + ".bin", 14);
  EXPECT_EQ(rejection(), "train.bin: token file longer than its index (expected 12 bytes, got 14)");
  fresh();
  std::filesystem::resize_file(prefix_ + ".idx", 20);
  EXPECT_EQ(rejection(), "train.idx: token index cut short (expected 34 bytes or more, got 20)");
  fresh();
  folder_.write("train.labels.bin", "abc");
  EXPECT_EQ(rejection(), "train.labels.bin: label file has the wrong size (expected 24 bytes, got 3)");
}

}  // namespace token_file_test
}  // namespace hawser::prepare
