#include "batches/sequence.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/philox.h"
#include "base/testing/temporary_folder.h"
#include "batches/sequence_order.h"
#include "batches/sequence_packer.h"

namespace hawser::batches {
namespace sequence_test {

using Ids = std::vector<std::int32_t>;

// A file of documents of these lengths, one sequence each; ids count up from 0 over the file.
std::shared_ptr<const prepare::TokenFile> file_of(const TemporaryFolder& folder, const Ids& lengths,
                                                  bool with_labels = false) {
  prepare::TokenFileWriter writer(folder.path("train"), 100000);
  std::int32_t next = 0;
  for (const std::int32_t length : lengths) {
    Ids ids(length);
    std::iota(ids.begin(), ids.end(), next);
    next += length;
    Ids labels = ids;
    for (std::int32_t& label : labels) label = label % 3 == 0 ? prepare::kIgnoredLabel : label;
    writer.add_sequence(ids, with_labels ? labels : Ids{});
    writer.end_document();
  }
  writer.finish();
  return std::make_shared<const prepare::TokenFile>(folder.path("train"));
}

void expect_consistent(const SequenceSet& set, std::int64_t length) {
  for (std::int64_t i = 0; i < set.size(); ++i) {
    const Sequence s = set.get(i);
    ASSERT_EQ(s.ids.size(), s.labels.size());
    ASSERT_EQ(s.positions, positions_of(s.document_lengths));
    ASSERT_EQ(s.positions.size(), s.ids.size());
    ASSERT_LE(s.length(), length);
    ASSERT_LE(static_cast<std::int64_t>(s.document_lengths.size()), set.max_documents());
    ASSERT_EQ(s.targets(), set.targets(i));
  }
}

TEST(ChunkedSequences, SplitsRunningTextWithTargetsAcrossChunks) {
  const TemporaryFolder folder;
  const auto set = chunked_sequences(file_of(folder, {5, 1, 4}), 4, 0);  // 10 tokens
  expect_consistent(*set, 4);
  ASSERT_EQ(set->size(), 3);
  EXPECT_EQ(set->get(0).ids, (Ids{0, 1, 2, 3}));
  EXPECT_EQ(set->get(0).labels, (Ids{1, 2, 3, 4}));  // the target of the last row is the next chunk's first token
  EXPECT_EQ(set->get(2).ids, (Ids{8, 9}));
  EXPECT_EQ(set->get(2).labels, (Ids{9, prepare::kIgnoredLabel}));
  std::int64_t targets = 0;
  for (std::int64_t i = 0; i < set->size(); ++i) targets += set->targets(i);
  EXPECT_EQ(targets, 9);
  // One token more than full chunks: it is only a target.
  EXPECT_EQ(chunked_sequences(file_of(folder, {9}), 4, 0)->size(), 2);
  EXPECT_THROW(chunked_sequences(file_of(folder, {1}), 4, 0), UserError);
}

TEST(ChunkedSequences, ReadsLabelsFromTheFileAndChecksIds) {
  const TemporaryFolder folder;
  const auto set = chunked_sequences(file_of(folder, {10}, true), 4, 10);
  EXPECT_EQ(set->get(0).labels, (Ids{1, 2, prepare::kIgnoredLabel, 4}));
  expect_consistent(*set, 4);
  EXPECT_THROW(chunked_sequences(file_of(folder, {10}), 4, 9)->get(2), UserError);
}

TEST(PackedSequences, HoldEveryTokenOnceAndEveryTargetWithinItsDocument) {
  const TemporaryFolder folder;
  Ids lengths;
  const RandomStream random(1, "lengths");
  for (int i = 0; i < 300; ++i)
    lengths.push_back(static_cast<std::int32_t>(1 + random.below(i % 10 == 0 ? 200 : 30, i)));
  for (const bool with_labels : {false, true}) {
    const auto file = file_of(folder, lengths, with_labels);
    const auto set = packed_sequences(file, 64, 5, 9, 0);
    expect_consistent(*set, 64);
    std::set<std::int32_t> ends;  // last token of each document
    for (std::int64_t i = 0; i < file->sequences(); ++i) ends.insert(static_cast<std::int32_t>(file->begin(i + 1) - 1));
    std::map<std::int32_t, int> seen;
    std::int64_t used = 0;
    for (std::int64_t i = 0; i < set->size(); ++i) {
      const Sequence s = set->get(i);
      used += s.length();
      const std::vector<Origin> origins = set->origins(i);
      ASSERT_EQ(origins.size(), s.document_lengths.size());
      std::size_t first = 0;
      for (std::size_t d = 0; d < origins.size(); first += static_cast<std::size_t>(s.document_lengths[d++])) {
        ASSERT_EQ(s.ids[first], file->begin(origins[d].document) + origins[d].begin);
        ASSERT_EQ(origins[d].tokens, file->length(origins[d].document));
        ASSERT_LE(origins[d].begin + s.document_lengths[d], origins[d].tokens);
      }
      for (std::size_t row = 0; row < s.ids.size(); ++row) {
        ++seen[s.ids[row]];
        const std::int32_t target = s.ids[row] + 1;
        const bool ignored = ends.contains(s.ids[row]) || (with_labels && target % 3 == 0);
        ASSERT_EQ(s.labels[row], ignored ? prepare::kIgnoredLabel : target);
        ASSERT_TRUE(s.positions[row] == 0 || s.ids[row] == s.ids[row - 1] + 1);
      }
    }
    // Omitted: documents of one token, and last tokens that would be a piece of their own (they are still targets).
    for (const auto& [id, count] : seen) ASSERT_EQ(count, 1) << id;
    for (std::int64_t i = 0; i < file->sequences(); ++i) {
      const std::int64_t kept = file->length(i) % 64 == 1 ? file->length(i) - 1 : file->length(i);
      for (std::int64_t k = 0; k < kept; ++k) ASSERT_TRUE(seen.contains(static_cast<std::int32_t>(file->begin(i) + k)));
    }
    EXPECT_LT(static_cast<double>(set->size() * 64),
              1.35 * static_cast<double>(used));  // limited by 5 documents per sequence
  }
}

TEST(PackedSequences, DependOnTheSeedOnly) {
  const TemporaryFolder folder;
  const auto file = file_of(folder, Ids(100, 20));
  const auto first = [&](std::uint64_t seed) { return packed_sequences(file, 64, 8, seed, 0)->get(0).ids; };
  EXPECT_EQ(first(1), first(1));
  EXPECT_NE(first(1), first(2));
  EXPECT_THROW(packed_sequences(file_of(folder, {1, 1}), 64, 8, 1, 0), UserError);
}

TEST(PackedSequences, SplitTruncateOrDropLongDocuments) {
  const TemporaryFolder folder;
  const auto file = file_of(folder, {4, 5, 6, 13});  // from ids 0, 4, 9 and 15
  const auto rows = [&](LongDocuments long_documents) {
    const auto set = packed_sequences(file, 4, 1, 1, 0, long_documents);
    expect_consistent(*set, 4);
    std::set<std::pair<Ids, Ids>> out;
    for (std::int64_t i = 0; i < set->size(); ++i) out.emplace(set->get(i).ids, set->get(i).labels);
    return out;
  };
  const std::pair<Ids, Ids> fits{{0, 1, 2, 3}, {1, 2, 3, -100}}, one_more{{4, 5, 6, 7}, {5, 6, 7, 8}};
  const std::pair<Ids, Ids> first{{9, 10, 11, 12}, {10, 11, 12, 13}}, second{{15, 16, 17, 18}, {16, 17, 18, 19}};
  EXPECT_EQ(rows(LongDocuments::drop), (std::set<std::pair<Ids, Ids>>{fits, one_more}));
  EXPECT_EQ(rows(LongDocuments::truncate), (std::set<std::pair<Ids, Ids>>{fits, one_more, first, second}));
  EXPECT_EQ(rows(LongDocuments::split), (std::set<std::pair<Ids, Ids>>{fits,
                                                                       one_more,
                                                                       first,
                                                                       {{13, 14}, {14, -100}},
                                                                       second,
                                                                       {{19, 20, 21, 22}, {20, 21, 22, 23}},
                                                                       {{23, 24, 25, 26}, {24, 25, 26, 27}}}));
  EXPECT_THROW(packed_sequences(file, 2, 1, 1, 0, LongDocuments::drop), UserError);
}

TEST(BestFit, UsesTheFullestBinWithSpace) {
  EXPECT_EQ(best_fit(Ids{3, 7, 5, 5, 10}, 10, 9), (Ids{1, 1, 2, 2, 0}));
  EXPECT_EQ(best_fit(Ids{1, 1, 1, 1, 1}, 10, 2), (Ids{0, 0, 1, 1, 2}));
  EXPECT_EQ(best_fit(Ids{}, 10, 2), Ids{});
}

// The definition: each piece, longest first, goes into the fullest bin with space.
Ids best_fit_by_search(const Ids& lengths, std::int64_t capacity, std::int64_t max) {
  Ids order(lengths.size()), bins(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int a, int b) { return lengths[a] > lengths[b]; });
  std::vector<std::pair<std::int64_t, std::int64_t>> held;  // tokens and pieces of each bin
  for (const int piece : order) {
    int best = -1;
    for (int b = 0; b < static_cast<int>(held.size()); ++b) {
      const bool fits = held[b].first + lengths[piece] <= capacity && held[b].second < max;
      if (fits && (best < 0 || held[b].first > held[best].first)) best = b;
    }
    if (best < 0) {
      best = static_cast<int>(held.size());
      held.push_back({0, 0});
    }
    held[best].first += lengths[piece];
    ++held[best].second;
    bins[piece] = best;
  }
  return bins;
}

TEST(BestFit, EqualsSearchForRandomLengths) {
  const RandomStream random(11, "best fit");
  for (int round = 0; round < 60; ++round) {
    const std::int64_t capacity = 20 + 10 * round;
    Ids lengths;
    for (int i = 0; i < 300; ++i) {
      lengths.push_back(1 + static_cast<std::int32_t>(random.below(capacity >> (i % 4), 1000 * round + i)));
    }
    for (const std::int64_t max : {2, 5, 1000}) {
      EXPECT_EQ(best_fit(lengths, capacity, max), best_fit_by_search(lengths, capacity, max));
    }
  }
}

TEST(ListedSequences, SplitLinesAndRestartPositions) {
  prepare::Line line{.ids = {10, 11, 12, 13, 14, 15, 16}, .document_lengths = {2, 5}};
  prepare::Line masked{.ids = {1, 2, 3}, .labels = {prepare::kIgnoredLabel, prepare::kIgnoredLabel, 7}};
  const auto set = listed_sequences({line, masked}, nullptr, 4);
  expect_consistent(*set, 4);
  ASSERT_EQ(set->size(), 3);
  EXPECT_EQ(set->get(0).document_lengths, (Ids{2, 2}));
  EXPECT_EQ(set->get(0).labels, (Ids{11, prepare::kIgnoredLabel, 13, prepare::kIgnoredLabel}));
  EXPECT_EQ(set->get(1).ids, (Ids{14, 15, 16}));
  EXPECT_EQ(set->get(1).labels, (Ids{15, 16, prepare::kIgnoredLabel}));
  EXPECT_EQ(set->get(1).document_lengths, (Ids{3}));
  EXPECT_EQ(set->get(2).labels, (Ids{prepare::kIgnoredLabel, 7, prepare::kIgnoredLabel}));
  EXPECT_THROW(listed_sequences({prepare::Line{.text = "words"}}, nullptr, 4), UserError);
}

TEST(Shuffle, IsAPermutationOfEverySize) {
  for (const std::int64_t count : {1, 2, 3, 4, 5, 16, 17, 100, 1000, 4097}) {
    const Shuffle shuffle(7, "test", count);
    std::vector<bool> seen(count);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t at = shuffle.at(i);
      ASSERT_TRUE(at >= 0 && at < count && !seen[at]) << count;
      seen[at] = true;
    }
  }
}

TEST(Shuffle, MixesWell) {
  // Mean displacement of a random permutation is a third of its length; the rank correlation is near 0.
  constexpr std::int64_t kCount = 10000;
  const Shuffle shuffle(7, "test", kCount);
  double distance = 0, product = 0;
  for (std::int64_t i = 0; i < kCount; ++i) {
    distance += std::abs(static_cast<double>(shuffle.at(i) - i)) / kCount / kCount;
    product += (static_cast<double>(i) / kCount - 0.5) * (static_cast<double>(shuffle.at(i)) / kCount - 0.5);
  }
  EXPECT_NEAR(distance, 1.0 / 3, 0.01);
  EXPECT_NEAR(product * 12 / kCount, 0.0, 0.03);
}

TEST(SequenceAt, ReturnsEverySequenceOncePerEpochInANewOrder) {
  std::vector<std::int64_t> first, second;
  for (std::int64_t i = 0; i < 50; ++i) first.push_back(sequence_at(3, 50, i));
  for (std::int64_t i = 50; i < 100; ++i) second.push_back(sequence_at(3, 50, i));
  EXPECT_NE(first, second);
  std::sort(first.begin(), first.end());
  std::sort(second.begin(), second.end());
  EXPECT_EQ(first, second);
  EXPECT_EQ(first.front(), 0);
  EXPECT_EQ(first.back(), 49);
}

}  // namespace sequence_test
}  // namespace hawser::batches
