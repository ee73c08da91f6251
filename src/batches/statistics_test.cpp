#include "batches/statistics.h"

#include <gtest/gtest.h>

#include "base/philox.h"
#include "base/testing/temporary_folder.h"
#include "batches/sequence.h"
#include "batches/sequence_packer.h"

namespace hawser::batches {
namespace statistics_test {

using Ids = std::vector<std::int32_t>;

class Statistics : public ::testing::Test {
 protected:
  std::shared_ptr<const prepare::TokenFile> write(const Ids& lengths, bool labels = false) {
    prepare::TokenFileWriter writer(folder_.path("t"), 100);
    for (const std::int32_t length : lengths) {
      Ids ids(length, 7), other(length, 7);
      for (int i = 0; i < length / 2; ++i) other[i] = prepare::kIgnoredLabel;
      writer.add_sequence(ids, labels ? std::span<const std::int32_t>(other) : std::span<const std::int32_t>());
      writer.end_document();
    }
    writer.finish();
    return std::make_shared<const prepare::TokenFile>(folder_.path("t"));
  }
  TemporaryFolder folder_;
};

TEST_F(Statistics, OfLengths) {
  const LengthStatistics found = length_statistics(*write({1, 2, 3, 3, 40, 64, 5, 3, 3, 3}));
  EXPECT_EQ(found.count, 10);
  EXPECT_EQ(found.tokens, 127);
  EXPECT_EQ(found.min, 1);
  EXPECT_EQ(found.median, 3);
  EXPECT_EQ(found.p90, 40);
  EXPECT_EQ(found.max, 64);
  EXPECT_DOUBLE_EQ(found.mean, 12.7);
  Ids counts;
  for (const LengthBin& bin : found.bins) counts.push_back(static_cast<std::int32_t>(bin.count));
  EXPECT_EQ(counts, (Ids{1, 6, 1, 0, 0, 1, 1})) << "1, 2 to 3, 4 to 7, ..., 32 to 63, 64 to 127";
  EXPECT_EQ(histogram(found, 40),
            "    1 to   1  ### 10.0%\n    2 to   3  ################## 60.0%\n    4 to   7  ### 10.0%\n"
            "    8 to  15   0.0%\n   16 to  31   0.0%\n   32 to  63  ### 10.0%\n   64 to 127  ### 10.0%\n");
}

TEST_F(Statistics, FillEqualsThatOfTheTrainingSequences) {
  const RandomStream random(5, "fill");
  Ids lengths;
  for (int i = 0; i < 3000; ++i)
    lengths.push_back(1 + static_cast<std::int32_t>(random.below(i % 7 == 0 ? 200 : 30, i)));
  const auto file = write(lengths);
  for (const std::int64_t length : {16, 64, 100}) {
    const auto packed = packed_sequences(file, length, 8, 3, 0), chunked = chunked_sequences(file, length, 0);
    const auto check = [&](const SequenceSet& set, const FillStatistics& fill) {
      std::int64_t tokens = 0;
      for (std::int64_t i = 0; i < set.size(); ++i) tokens += set.get(i).length();
      EXPECT_EQ(fill.sequences, set.size());
      EXPECT_EQ(fill.tokens, tokens);
      EXPECT_DOUBLE_EQ(fill.fill, static_cast<double>(tokens) / static_cast<double>(set.size() * length));
    };
    check(*packed, packed_fill(*file, length, 8, 3));
    check(*chunked, chunked_fill(*file, length));
    EXPECT_GT(packed_fill(*file, length, 1000, 3).fill, 0.99);
    for (const LongDocuments action : {LongDocuments::truncate, LongDocuments::drop}) {
      check(*packed_sequences(file, length, 8, 3, 0, action), packed_fill(*file, length, 8, 3, action));
    }
  }
}

TEST_F(Statistics, DocumentsOfOneTokenFillNothing) {
  const FillStatistics packed = packed_fill(*write({1, 1, 1}), 8, 8, 3);
  EXPECT_EQ(packed.sequences, 0);
  EXPECT_EQ(packed.tokens, 0);
  EXPECT_EQ(packed.fill, 0.0);
}

// Of documents with labels the first half is masked.
TEST_F(Statistics, OfDocumentsLongerThanASequence) {
  const auto file = write({4, 9, 20, 10, 30}, true);
  const auto text = [&](LongDocuments action, std::int64_t length = 8) {
    return describe(long_statistics(*file, length, action), *file, length, action);
  };
  EXPECT_EQ(text(LongDocuments::split),
            "3 of 5 documents are longer than 8 tokens and are split into 9 pieces, which do not attend to each other");
  EXPECT_EQ(text(LongDocuments::truncate),
            "3 of 5 documents are longer than 8 tokens and are truncated: 33 tokens (45.2%) left out, 26 of them "
            "learned; 2 begin without a learned token");
  EXPECT_EQ(
      text(LongDocuments::drop),
      "3 of 5 documents are longer than 8 tokens and are dropped: 60 tokens (82.2%) left out, 30 of them learned");
  EXPECT_EQ(text(LongDocuments::drop, 20),
            "1 of 5 documents is longer than 20 tokens and is dropped: 30 tokens (41.1%) left out, 15 of them learned");
  EXPECT_EQ(text(LongDocuments::drop, 29), "");
  const auto pieces = long_statistics(*file, 8, LongDocuments::split).pieces;
  EXPECT_EQ(pieces, static_cast<std::int64_t>(piece_lengths(*file, 8).size()) - 2);
}

TEST_F(Statistics, OfLabeledTokens) {
  EXPECT_EQ(learned_statistics(*write({4, 5}, true)).learned, 5);
  EXPECT_EQ(learned_statistics(*write({4, 5})).learned, 9);
  // More than are counted at a time.
  const auto large = write({150'001}, true);
  EXPECT_EQ(learned_statistics(*large).learned, 75'001);
  EXPECT_EQ(long_statistics(*large, 8, LongDocuments::drop).learned, 75'001);
}

}  // namespace statistics_test
}  // namespace hawser::batches
