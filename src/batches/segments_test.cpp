#include "batches/segments.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "base/philox.h"
#include "batches/micro_batch.h"

namespace hawser::batches {
namespace segments_test {

using Lengths = std::vector<std::int32_t>;

// Random document lengths that fill most or all of `length`.
Lengths random_documents(const RandomStream& random, std::uint64_t trial, std::int64_t length, std::int64_t max) {
  Lengths lengths;
  std::int64_t left = length - static_cast<std::int64_t>(random.below(3, trial, 100));
  const auto count = static_cast<std::int64_t>(random.below(max + 1, trial, 200));
  for (std::int64_t d = 0; d < count && left > 0; ++d) {
    const auto part = 1 + static_cast<std::int64_t>(random.below(left, trial, d));
    lengths.push_back(static_cast<std::int32_t>(random.below(4, trial, 300 + d) == 0 ? 1 : part));
    left -= lengths.back();
  }
  return lengths;
}

Sequence sequence_of(const Lengths& lengths, std::int32_t first_id) {
  Sequence s;
  s.document_lengths = lengths;
  s.positions = positions_of(lengths);
  s.ids.resize(s.positions.size());
  std::iota(s.ids.begin(), s.ids.end(), first_id);
  for (std::size_t i = 0; i < s.ids.size(); ++i) {
    const bool last = i + 1 == s.ids.size() || s.positions[i + 1] == 0;
    s.labels.push_back(last ? prepare::kIgnoredLabel : s.ids[i] + 1);
  }
  return s;
}

TEST(ChunkTable, ZigZagPairsFirstWithLast) {
  const ChunkTable table = make_zigzag(20, 3);
  EXPECT_EQ(table.chunk_length, 4);
  EXPECT_EQ(table.padded_length(), 24);
  EXPECT_EQ(table.owner, (Lengths{0, 1, 2, 2, 1, 0}));
  EXPECT_EQ(table.local, (Lengths{0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(table.chunks_of(1), (Lengths{1, 4}));
  EXPECT_DOUBLE_EQ(imbalance(work_by_rank(table, Lengths{24})), 1.0);
  EXPECT_EQ(make_zigzag(20, 1).padded_length(), 20);
  EXPECT_EQ(padded_length(20, 6), 24);
}

TEST(ChunkTable, AssignsEqualCountsAndBalancesPackedDocuments) {
  const RandomStream random(3, "deal");
  double dealt = 0, zigzag = 0;
  constexpr int kTrials = 40;
  for (int trial = 0; trial < kTrials; ++trial) {
    Lengths lengths;
    std::int64_t left = 131072;
    while (left > 0) {
      const std::int64_t part =
          std::min<std::int64_t>(left, 1 + static_cast<std::int64_t>(random.below(60000, trial, lengths.size())));
      lengths.push_back(static_cast<std::int32_t>(part));
      left -= part;
    }
    const ChunkTable table = deal_by_work(131072, lengths, 4, 4);
    for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(table.chunks_of(rank).size(), 4u);
    const auto work = work_by_rank(table, lengths);
    double pairs = 0;
    for (const double length : lengths) pairs += length * (length + 1) / 2;
    EXPECT_DOUBLE_EQ(std::accumulate(work.begin(), work.end(), 0.0), pairs);
    dealt += imbalance(work) / kTrials;
    zigzag += imbalance(work_by_rank(make_zigzag(131072, 4), lengths)) / kTrials;
  }
  EXPECT_LT(dealt, 1.1);
  EXPECT_GT(zigzag, 1.1);
  EXPECT_EQ(imbalance(work_by_rank(deal_by_work(100, {}, 4, 4), {})), 1.0);
}

TEST(ChunkTable, GroupsAdjacentChunksIfBalanced) {
  // Equal documents: groups of four chunks are already balanced.
  const ChunkTable even = deal_by_work(64, Lengths(16, 4), 4, 4, {}, 4);
  for (int chunk = 0; chunk < 16; ++chunk) EXPECT_EQ(even.owner[chunk], even.owner[chunk / 4 * 4]) << chunk;
  EXPECT_DOUBLE_EQ(imbalance(work_by_rank(even, Lengths(16, 4))), 1.0);
  // One document: the last group of four has 7/16 of the work; single chunks balance to within one chunk.
  const Lengths one{64};
  std::vector<double> load(4, 0.0);
  const ChunkTable table = deal_by_work(64, one, 4, 4, load, 4);
  const auto work = work_by_rank(table, one);
  EXPECT_LT(imbalance(work), 1.1);
  EXPECT_EQ(load, work);
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(table.chunks_of(rank).size(), 4u);
  EXPECT_THROW(deal_by_work(64, one, 4, 4, {}, 3), InternalError);
}

TEST(ChunkTable, CarriesTheLoadToTheNextSequence) {
  // One heavy chunk each: assigned to different ranks only because the load carries over.
  std::vector<double> load(2, 0.0);
  const ChunkTable a = deal_by_work(8, Lengths{8}, 2, 1, load);
  const ChunkTable b = deal_by_work(8, Lengths{8}, 2, 1, load);
  EXPECT_NE(a.owner, b.owner);
  EXPECT_DOUBLE_EQ(load[0], load[1]);
}

TEST(Segments, OneRankHasOneDiagonalBlockPerDocument) {
  const std::vector<ChunkTable> tables(2, make_zigzag(10, 1));
  const std::vector<Lengths> documents = {{3, 1, 5}, {10}};
  const Segments segments = make_segments(tables, documents, 0);
  EXPECT_TRUE(segments.off_diagonal.empty());
  EXPECT_EQ(segments.diagonal,
            (std::vector<Segment>{{0, 3, 0, 3, 0, 0}, {3, 1, 3, 1, 0, 0}, {4, 5, 4, 5, 0, 0}, {10, 10, 10, 10, 0, 0}}));
}

TEST(Segments, AdjacentChunksStaySeparateWithoutJoin) {
  const std::vector<ChunkTable> tables = {make_zigzag(16, 2)};
  const std::vector<Lengths> documents = {{13}};
  const Segments middle = make_segments(tables, documents, 1, false);
  EXPECT_EQ(middle.diagonal, (std::vector<Segment>{{0, 4, 4, 4, 4, 4}, {4, 4, 8, 4, 8, 8}}));
  EXPECT_EQ(middle.off_diagonal, (std::vector<Segment>{{0, 4, 0, 4, 4, 0}, {4, 4, 0, 8, 8, 0}}));
  const Segments outer = make_segments(tables, documents, 0, false);
  EXPECT_EQ(outer.off_diagonal, (std::vector<Segment>{{4, 1, 0, 12, 12, 0}}));
}

TEST(Segments, MiddleChunksOfAZigZagAreOnePiece) {
  const std::vector<ChunkTable> tables = {make_zigzag(16, 2)};
  const std::vector<Lengths> documents = {{16}};
  const Segments middle = make_segments(tables, documents, 1);
  EXPECT_EQ(middle.diagonal, (std::vector<Segment>{{0, 8, 4, 8, 4, 4}}));
  EXPECT_EQ(middle.off_diagonal, (std::vector<Segment>{{0, 8, 0, 4, 4, 0}}));
  const Segments outer = make_segments(tables, documents, 0);
  EXPECT_EQ(outer.diagonal, (std::vector<Segment>{{0, 4, 0, 4, 0, 0}, {4, 4, 12, 4, 12, 12}}));
  EXPECT_EQ(outer.off_diagonal, (std::vector<Segment>{{4, 4, 0, 12, 12, 0}}));
}

// Over all ranks, every causal pair within a document is in exactly one segment, every pair in one complete segment,
// rows keep their ids, labels and positions, and the bounds hold.
TEST(MicroBatch, SplitOverRanksEqualsBruteForce) {
  const RandomStream random(5, "segments");
  for (std::uint64_t trial = 0; trial < 300; ++trial) {
    const auto pick = [&](std::uint64_t bound, std::uint64_t what) {
      return static_cast<std::int64_t>(random.below(bound, trial, 1000 + what));
    };
    BatchShape shape{{.sequences = 1 + pick(3, 0),
                      .sequence_length = 1 + pick(40, 1),
                      .max_documents = 1 + pick(6, 2),
                      .context = static_cast<int>(1 + pick(5, 3))}};
    shape.split = pick(2, 4) == 0 ? SequenceSplit::zigzag : SequenceSplit::by_work;
    if (shape.context > 1) {
      shape.chunks_per_rank = shape.split == SequenceSplit::zigzag ? 2 : static_cast<int>(1 + pick(4, 5));
    }
    std::vector<Sequence> sequences;
    const std::int64_t given = pick(static_cast<std::uint64_t>(shape.sequences) + 1, 6);
    for (std::int64_t s = 0; s < given; ++s) {
      const auto lengths = random_documents(random, trial * 10 + s, shape.sequence_length, shape.max_documents);
      sequences.push_back(sequence_of(lengths, static_cast<std::int32_t>(1 + 1000 * s)));
    }
    const std::int64_t window = pick(2, 7) == 0 ? 0 : 1 + pick(45, 8);
    const bool split = pick(2, 9) == 0;
    const bool distances = pick(2, 11) == 0;
    const AttentionMask two_sided{.causal = false, .window = window, .distances = distances};
    shape.masks = {{{.window = window, .distances = distances}, 1.0}, {two_sided, 0.0}};
    shape.row_multiple = static_cast<int>(1 + pick(4, 10));
    shape.source_segments = true;
    ASSERT_EQ(shape.local_rows() % shape.row_multiple, 0);
    ASSERT_LT(shape.padded_length(), shape.sequence_length + shape.chunks() * shape.row_multiple);
    const SegmentBounds bounds = shape.max_segments();
    const std::int64_t padded = shape.padded_length(), rows = shape.global_rows();
    std::vector<int> pairs(rows * rows, 0), held(rows, 0), by_sources(rows * rows, 0), complete(rows * rows, 0),
        by_sources_two_sided(rows * rows, 0);
    std::int64_t valid = 0;
    double visible = 0, visible_two_sided = 0;  // as every rank counts it
    for (int rank = 0; rank < shape.context; ++rank) {
      const MicroBatch batch = make_micro_batch(sequences, shape, rank, 12);
      ASSERT_EQ(static_cast<std::int64_t>(batch.ids.size()), shape.local_rows());
      ASSERT_LE(static_cast<std::int64_t>(batch.diagonal.size()), bounds.diagonal);
      ASSERT_LE(static_cast<std::int64_t>(batch.off_diagonal.size()), bounds.off_diagonal);
      // Global row of each local row of each rank, from the batch's chunk table.
      std::vector<std::vector<std::int64_t>> globals(shape.context, std::vector<std::int64_t>(shape.local_rows(), -1));
      for (std::int64_t s = 0; s < shape.sequences; ++s) {
        for (int chunk = 0; chunk < shape.chunks(); ++chunk) {
          const auto at = s * shape.chunks() + chunk;
          for (std::int64_t i = 0; i < shape.chunk_length(); ++i) {
            const std::int64_t local = (s * shape.chunks_per_rank + batch.chunk_local[at]) * shape.chunk_length() + i;
            globals[batch.chunk_owner[at]][local] = s * padded + chunk * shape.chunk_length() + i;
          }
        }
      }
      const std::vector<std::int64_t>& global = globals[rank];
      for (std::int64_t local = 0; local < shape.local_rows(); ++local) {
        ASSERT_GE(global[local], 0);
        ++held[global[local]];
        const std::int64_t s = global[local] / padded, row = global[local] % padded;
        const bool real = s < given && row < sequences[s].length();
        ASSERT_EQ(batch.ids[local], real ? sequences[s].ids[row] : 0);
        ASSERT_EQ(batch.labels[local], real ? sequences[s].labels[row] : prepare::kIgnoredLabel);
        ASSERT_EQ(batch.positions[local], real ? sequences[s].positions[row] : 0);
        ASSERT_EQ(batch.row_ids[2 * local], 12 + s);
        ASSERT_EQ(batch.row_ids[2 * local + 1], row);
        ASSERT_EQ(batch.token_mask[local], real ? 1 : 0);
        valid += batch.labels[local] != prepare::kIgnoredLabel;
      }
      const auto mark = [&](const Segment& segment) {
        for (std::int32_t q = 0; q < segment.q_count; ++q) {
          const std::int64_t row = global[segment.q_begin + q];
          ASSERT_EQ(batch.positions[segment.q_begin + q], segment.q_position + q);
          for (std::int32_t k = 0; k < segment.k_count; ++k) {
            const std::int32_t distance = segment.q_position + q - segment.k_position - k;
            if (distance >= 0 && (window == 0 || distance < window)) ++pairs[row * rows + segment.k_begin + k];
          }
        }
      };
      for (const Segment& diagonal : batch.diagonal) {
        ASSERT_TRUE(diagonal.q_count == diagonal.k_count && diagonal.q_position == diagonal.k_position &&
                    diagonal.q_count > 0);
        ASSERT_EQ(global[diagonal.q_begin],
                  diagonal.k_begin);  // keys are the queries' own rows, contiguous in both orders
        ASSERT_EQ(global[diagonal.q_begin + diagonal.q_count - 1], diagonal.k_begin + diagonal.k_count - 1);
        mark(diagonal);
      }
      for (const Segment& off_diagonal : batch.off_diagonal) {
        ASSERT_TRUE(off_diagonal.k_position == 0 && off_diagonal.k_count == off_diagonal.q_position &&
                    off_diagonal.k_count > 0);
        if (window == 0) mark(off_diagonal);
      }
      if (window > 0) {
        const WindowSegments cut = window_segments(batch.off_diagonal, window, split);
        ASSERT_LE(static_cast<std::int64_t>(cut.band.size()), bounds.off_diagonal);
        ASSERT_LE(static_cast<std::int64_t>(cut.complete.size()), split ? bounds.off_diagonal : 0);
        for (const Segment& s : cut.band) {
          ASSERT_TRUE(s.q_count > 0 && s.q_count < window && s.k_count > 0 && s.k_count < window);
          const std::int32_t distance = s.q_position - s.k_position;
          ASSERT_TRUE(split ? distance == window - 1 : distance == s.k_count);
          ASSERT_LT(distance, window) << "the first query does not see the first key";
          ASSERT_LT(distance + s.q_count - s.k_count, window) << "the last query does not see the last key";
          mark(s);
        }
        for (const Segment& s : cut.complete) {
          ASSERT_TRUE(s.q_count > 0 && s.k_count > 0 && s.q_position + s.q_count - s.k_position <= window);
          mark(s);
        }
      }
      ASSERT_EQ(batch.by_source.size(), shape.masks.size());
      for (std::size_t m = 0; m < shape.masks.size(); ++m) {
        const AttentionMask mask = shape.masks[m].mask;
        const auto sources = static_cast<std::size_t>(shape.sources(mask)), pieces = sources / shape.context;
        const bool halves = mask.causal && window > 0 && shape.splits_windows();
        std::vector<int>& marked = mask.causal ? by_sources : by_sources_two_sided;
        ASSERT_EQ(batch.by_source[m].size(), sources);
        for (std::size_t i = 0; i < sources; ++i) {
          const WindowSegments& of = batch.by_source[m][i];
          ASSERT_LE(static_cast<std::int64_t>(of.band.size()), mask.causal ? bounds.off_diagonal : bounds.diagonal);
          ASSERT_LE(static_cast<std::int64_t>(of.complete.size()), halves ? bounds.off_diagonal : 0);
          for (const Segment& segment : of.band) {
            if (halves) {
              ASSERT_EQ(segment.q_position - segment.k_position, window - 1);
            }
          }
          std::vector<int> queries(shape.local_rows(), 0);
          for (const auto& list : {of.band, of.complete}) {
            for (const Segment& segment : list) {
              ASSERT_GT(segment.k_count, 0);
              ASSERT_EQ(batch.positions[segment.q_begin], segment.q_position);
              if (by_chunk(mask)) {
                ASSERT_EQ(segment.k_begin / shape.chunk_length() % shape.chunks_per_rank,
                          static_cast<std::int64_t>(i % pieces));
              }
              for (std::int32_t q = 0; q < segment.q_count; ++q) {
                ASSERT_EQ(++queries[segment.q_begin + q], 1) << "a query is in two segments";
                for (std::int32_t k = 0; k < segment.k_count; ++k) {
                  const std::int64_t key = globals[i / pieces][segment.k_begin + k];
                  const std::int32_t distance = segment.q_position + q - segment.k_position - k;
                  if (by_chunk(mask)) {
                    ASSERT_EQ(distance, global[segment.q_begin + q] - key);
                  }
                  if (window == 0 || !mask.causal || distance < window) {
                    ++marked[global[segment.q_begin + q] * rows + key];
                  }
                }
              }
            }
          }
        }
      }
      for (const Segment& diagonal : batch.diagonal) {
        for (std::int32_t q = 0; q < diagonal.q_count; ++q) {
          for (std::int32_t k = std::max(0, window > 0 ? q - static_cast<std::int32_t>(window) + 1 : 0); k <= q; ++k) {
            ++by_sources[global[diagonal.q_begin + q] * rows + diagonal.k_begin + k];
          }
        }
      }
      ASSERT_EQ(batch.complete.size(), batch.diagonal.size());
      for (const Segment& segment : batch.complete) {
        ASSERT_EQ(segment.k_position, 0);
        ASSERT_EQ(batch.positions[segment.q_begin], segment.q_position);
        for (std::int32_t q = 0; q < segment.q_count; ++q) {
          for (std::int32_t k = 0; k < segment.k_count; ++k) {
            ++complete[global[segment.q_begin + q] * rows + segment.k_begin + k];
          }
        }
      }
      visible = batch.mask_pairs.at(0);
      visible_two_sided = batch.mask_pairs.at(1);
      if (shape.context == 1) {
        std::size_t documents = 0;
        for (const Sequence& sequence : sequences) documents += sequence.document_lengths.size();
        ASSERT_EQ(batch.diagonal.size(), documents);
      }
    }
    for (const int count : held) ASSERT_EQ(count, 1);
    std::int64_t expected_valid = 0;
    for (const Sequence& sequence : sequences) expected_valid += sequence.targets();
    ASSERT_EQ(valid, expected_valid);
    double two_sided_pairs = 0;
    for (std::int64_t q = 0; q < rows; ++q) {
      for (std::int64_t k = 0; k < rows; ++k) {
        const std::int64_t s = q / padded, row = q % padded, key = k % padded;
        const bool causal = k / padded == s && s < given && row < sequences[s].length() && key <= row &&
                            row - key <= sequences[s].positions[row];
        const bool same = causal && (window == 0 || row - key < window);
        ASSERT_EQ(by_sources[q * rows + k], same ? 1 : 0) << "trial " << trial << " query " << q << " key " << k;
        const auto start = [&](std::int64_t at) { return at - sequences[s].positions[at]; };
        const bool document = k / padded == s && s < given && row < sequences[s].length() &&
                              key < sequences[s].length() && start(row) == start(key);
        ASSERT_EQ(by_sources_two_sided[q * rows + k], document ? 1 : 0) << "trial " << trial << " query " << q;
        ASSERT_EQ(complete[q * rows + k], document ? 1 : 0) << "trial " << trial << " query " << q << " key " << k;
        two_sided_pairs += document && (window == 0 || row - key < window);
        ASSERT_EQ(pairs[q * rows + k], same ? 1 : 0) << "trial " << trial << " query " << q << " key " << k;
      }
    }
    ASSERT_DOUBLE_EQ(visible, std::accumulate(pairs.begin(), pairs.end(), 0));
    ASSERT_DOUBLE_EQ(visible_two_sided, two_sided_pairs);
  }
}

// The ranks with heads of a rank of the ring have its rows, in equal parts of each sequence.
TEST(MicroBatch, HeadsHaveTheRowsOfARankOfTheRing) {
  BatchShape ring{{.sequences = 2, .sequence_length = 45, .max_documents = 3, .context = 2, .chunks_per_rank = 2}};
  ring.row_multiple = 3;
  BatchShape both = ring;
  both.context = 6;
  both.context_heads = 3;
  ring.row_multiple = 9;
  ASSERT_EQ(both.ring(), 2);
  ASSERT_EQ(both.attention_rows(), ring.local_rows());
  ASSERT_EQ(both.local_rows() % 3, 0);
  const std::vector<Sequence> sequences = {sequence_of({20, 3, 21}, 1), sequence_of({41}, 1000)};
  for (int r = 0; r < 2; ++r) {
    const MicroBatch whole = make_micro_batch(sequences, ring, r, 5);
    const std::int64_t of_sequence = ring.local_rows() / 2, part = of_sequence / 3;
    for (int u = 0; u < 3; ++u) {
      const MicroBatch batch = make_micro_batch(sequences, both, 3 * r + u, 5);
      EXPECT_EQ(batch.diagonal, whole.diagonal);
      EXPECT_EQ(batch.off_diagonal, whole.off_diagonal);
      EXPECT_EQ(batch.attention_row_ids, whole.row_ids);
      EXPECT_EQ(batch.mask_pairs, whole.mask_pairs);
      for (std::int64_t s = 0; s < 2; ++s) {
        for (std::int64_t i = 0; i < part; ++i) {
          const std::int64_t mine = s * part + i, of_ring = s * of_sequence + u * part + i;
          ASSERT_EQ(batch.ids[mine], whole.ids[of_ring]);
          ASSERT_EQ(batch.labels[mine], whole.labels[of_ring]);
          ASSERT_EQ(batch.positions[mine], whole.positions[of_ring]);
          ASSERT_EQ(batch.token_mask[mine], whole.token_mask[of_ring]);
          ASSERT_EQ(batch.row_ids[2 * mine + 1], whole.row_ids[2 * of_ring + 1]);
        }
      }
    }
  }
}

TEST(Segments, BoundsAreReached) {
  // Two documents whose boundary is in the second run: 2 + 2 - 1 = 3 diagonal blocks, and one off-diagonal block for
  // each run but the first.
  const std::vector<ChunkTable> tables = {make_zigzag(16, 2)};
  const Segments segments = make_segments(tables, std::vector<Lengths>{{14, 2}}, 0);
  EXPECT_EQ(static_cast<std::int64_t>(segments.diagonal.size()), max_segments(1, 2, 2, 2).diagonal);
  EXPECT_EQ(max_segments(3, 5, 1, 1).diagonal, 15);
  EXPECT_EQ(max_segments(3, 5, 1, 1).off_diagonal, 0);
  EXPECT_EQ(max_segments(3, 5, 4, 2).diagonal, 24);
  EXPECT_EQ(max_segments(3, 5, 4, 2).off_diagonal, 12);
}

}  // namespace segments_test
}  // namespace hawser::batches
