#include "batches/batch_loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/testing/temporary_folder.h"

namespace hawser::batches {
namespace batch_loader_test {

using Ids = std::vector<std::int32_t>;

std::shared_ptr<const prepare::TokenFile> counting_file(const TemporaryFolder& folder, std::int32_t tokens) {
  prepare::TokenFileWriter writer(folder.path("train"), 100000);
  for (std::int32_t i = 0; i < tokens; ++i) writer.add_sequence(Ids{i});
  writer.finish();
  return std::make_shared<const prepare::TokenFile>(folder.path("train"));
}

// Sorted (id, label) of every row with a target, over all ranks of a layout in a step.
std::vector<std::pair<int, int>> step_rows(const std::shared_ptr<const SequenceSet>& set, BatchShape shape,
                                           int data_ranks, const BatchOrder& order, std::int64_t step,
                                           std::int64_t* micro_batches = nullptr) {
  std::vector<std::pair<int, int>> rows;
  std::int64_t targets = -1;
  for (int data = 0; data < data_ranks; ++data) {
    for (int context = 0; context < shape.context; ++context) {
      const BatchLoader loader(set, shape, {data, data_ranks, context, shape.context}, order);
      if (micro_batches) *micro_batches = loader.micro_batches();
      for (std::int64_t m = 0; m < loader.micro_batches(); ++m) {
        const MicroBatch batch = loader.load(step, m);
        EXPECT_TRUE(targets < 0 || targets == batch.step_targets);
        targets = batch.step_targets;
        for (std::size_t i = 0; i < batch.ids.size(); ++i) {
          if (batch.labels[i] != prepare::kIgnoredLabel) rows.emplace_back(batch.ids[i], batch.labels[i]);
        }
      }
    }
  }
  EXPECT_EQ(targets, static_cast<std::int64_t>(rows.size()));
  std::sort(rows.begin(), rows.end());
  return rows;
}

BatchShape shape_of(std::int64_t sequences, std::int64_t length, int context,
                    SequenceSplit split = SequenceSplit::zigzag) {
  return {{.sequences = sequences,
           .sequence_length = length,
           .max_documents = 8,
           .context = context,
           .chunks_per_rank = context == 1                     ? 1
                              : split == SequenceSplit::zigzag ? 2
                                                               : 3,
           .split = split}};
}

TEST(BatchLoader, StepIsTheSameOnEveryLayout) {
  const TemporaryFolder folder;
  const std::shared_ptr<const SequenceSet> set = chunked_sequences(counting_file(folder, 500), 13, 0);
  const BatchOrder order{.global_batch_size = 5, .seed = 11};
  for (const std::int64_t step : {0, 3, 20}) {
    const auto expected = step_rows(set, shape_of(1, 13, 1), 1, order, step);
    ASSERT_FALSE(expected.empty());
    for (const int data_ranks : {1, 2, 3, 8}) {
      for (const int sequences : {1, 2, 4}) {
        for (const int context : {1, 2, 3}) {
          EXPECT_EQ(step_rows(set, shape_of(sequences, 13, context), data_ranks, order, step), expected);
          EXPECT_EQ(step_rows(set, shape_of(sequences, 13, context, SequenceSplit::by_work), data_ranks, order, step),
                    expected);
        }
      }
    }
  }
}

TEST(BatchLoader, EvaluationReadsTheSetOnce) {
  const TemporaryFolder folder;
  const std::shared_ptr<const SequenceSet> set = chunked_sequences(counting_file(folder, 100), 10, 0);
  const BatchOrder order{.global_batch_size = 4, .shuffle = false};
  const BatchLoader loader(set, shape_of(1, 10, 1), {0, 1, 0, 1}, order);
  EXPECT_EQ(loader.steps(), 3);
  std::vector<std::pair<int, int>> all;
  for (std::int64_t step = 0; step < loader.steps(); ++step) {
    const auto rows = step_rows(set, shape_of(2, 10, 2), 3, order, step);
    all.insert(all.end(), rows.begin(), rows.end());
  }
  ASSERT_EQ(all.size(), 99u);
  for (int i = 0; i < 99; ++i) EXPECT_EQ(all[i], std::pair(i, i + 1));
}

// For any global batch size.
TEST(BatchLoader, EvaluationReadsTheGivenNumberOfSequences) {
  const TemporaryFolder folder;
  const std::shared_ptr<const SequenceSet> set = chunked_sequences(counting_file(folder, 100), 10, 0);  // 10 sequences
  for (const std::int64_t at_once : {1, 2, 3, 6, 16}) {
    for (const std::int64_t first : {6, 10, 12, 0}) {
      const BatchOrder order{.global_batch_size = at_once, .shuffle = false, .first = first};
      const BatchLoader loader(set, shape_of(1, 10, 1), {0, 1, 0, 1}, order);
      std::int64_t rows = 0, targets = 0;
      for (std::int64_t step = 0; step < loader.steps(); ++step) {
        rows += static_cast<std::int64_t>(step_rows(set, shape_of(1, 10, 1), 1, order, step).size());
        targets += loader.step_targets(step);
      }
      EXPECT_EQ(rows, first == 6 ? 60 : 99) << at_once << " at once, the first " << first;
      EXPECT_EQ(targets, rows);
    }
  }
}

TEST(BatchLoader, RejectsMismatchedShapes) {
  const TemporaryFolder folder;
  const std::shared_ptr<const SequenceSet> set = chunked_sequences(counting_file(folder, 100), 10, 0);
  EXPECT_THROW(BatchLoader(set, shape_of(1, 10, 2), {0, 1, 0, 1}, {}), InternalError);
  EXPECT_THROW(BatchLoader(set, shape_of(1, 9, 1), {0, 1, 0, 1}, {.seed = 1}).load(0, 0), InternalError);
}

TEST(JsonlBatch, IsOneBatchWithTheSameMicroBatchesOnEveryRank) {
  const TemporaryFolder folder;
  const std::string path = folder.write("e.jsonl",
                                        "{\"input_ids\":[1,2,3,4,5,6,7,8,9]}\n"
                                        "{\"input_ids\":[11,12,13,14],\"document_lengths\":[1,1,1,1]}\n"
                                        "{\"input_ids\":[21,22,23],\"labels\":[-100,-100,23]}\n");
  // Targets: pieces 1..4, 5..8 and 9 have 3, 3 and 0; four documents of one token have none; the masked line has one.
  const std::size_t expected = 3 + 3 + 0 + 0 + 1;
  for (const int data_ranks : {1, 2, 4, 8}) {
    for (const int context : {1, 2, 3}) {
      std::size_t targets = 0;
      std::int64_t micro_batches = -1;
      for (int data = 0; data < data_ranks; ++data) {
        for (int c = 0; c < context; ++c) {
          BatchShape shape = shape_of(1, 4, context);
          shape.max_documents = 1;
          const auto loader = listed_batch({.paths = {path}, .vocab_size = 100}, shape, {data, data_ranks, c, context});
          EXPECT_EQ(loader->shape().max_documents, 4);
          EXPECT_TRUE(micro_batches < 0 || micro_batches == loader->micro_batches());
          micro_batches = loader->micro_batches();
          for (std::int64_t m = 0; m < micro_batches; ++m) {
            const MicroBatch batch = loader->load(0, m);
            EXPECT_EQ(batch.step_targets, static_cast<std::int64_t>(expected));
            targets +=
                batch.labels.size() - std::count(batch.labels.begin(), batch.labels.end(), prepare::kIgnoredLabel);
          }
        }
      }
      EXPECT_EQ(targets, expected);
    }
  }
  EXPECT_THROW(
      listed_batch({.paths = {folder.write("t.jsonl", "{\"text\":\"a\"}")}, .vocab_size = 100}, shape_of(1, 4, 1), {}),
      UserError);
  EXPECT_THROW(listed_batch({.paths = {folder.write("t.jsonl", "\n")}, .vocab_size = 100}, shape_of(1, 4, 1), {}),
               UserError);
}

TEST(Prefetcher, ReturnsMicroBatchesInOrderAndThenThrows) {
  const TemporaryFolder folder;
  const std::shared_ptr<const SequenceSet> set = chunked_sequences(counting_file(folder, 300), 10, 0);
  const auto loader = std::make_shared<const BatchLoader>(set, shape_of(1, 10, 1), BatchLayout{0, 2, 0, 1},
                                                          BatchOrder{.global_batch_size = 6, .seed = 2});
  Prefetcher prefetcher(loader, 4, 7, 2);
  for (std::int64_t step = 4; step < 7; ++step) {
    for (std::int64_t m = 0; m < 3; ++m) EXPECT_EQ(prefetcher.next().ids, loader->load(step, m).ids);
  }
  EXPECT_THROW(prefetcher.next(), InternalError);
  Prefetcher endless(loader, 0);  // its destructor stops the thread while micro-batches are ready
  endless.next();
}

TEST(Prefetcher, RethrowsErrorsOfTheLoader) {
  const TemporaryFolder folder;
  const std::shared_ptr<const SequenceSet> set = chunked_sequences(counting_file(folder, 300), 10, 50);
  const auto loader = std::make_shared<const BatchLoader>(set, shape_of(1, 10, 1), BatchLayout{},
                                                          BatchOrder{.global_batch_size = 30, .shuffle = false});
  Prefetcher prefetcher(loader, 0);
  for (int i = 0; i < 4; ++i) prefetcher.next();  // the last target of the fifth is id 50
  EXPECT_THROW(prefetcher.next(), UserError);
}

TEST(BatchShape, FollowsPackingAndRanks) {
  PackingPlan packing{.sequence_length = 1000, .max_documents = default_max_documents(Packing::documents, 1000)};
  BatchShape shape{batch_sizes(packing, 1, 2)};
  EXPECT_EQ(shape.chunks_per_rank, 4);
  EXPECT_EQ(shape.max_documents, 15);
  EXPECT_EQ(shape.padded_length(), 1000);
  EXPECT_EQ(shape.local_rows(), 500);
  packing = {
      .pack = Packing::chunks, .sequence_length = 1000, .max_documents = default_max_documents(Packing::chunks, 1000)};
  shape = {batch_sizes(packing, 1, 2)};
  EXPECT_EQ(shape.split, SequenceSplit::zigzag);
  EXPECT_EQ(shape.chunks_per_rank, 2);
  EXPECT_EQ(shape.max_documents, 1);
  EXPECT_EQ(batch_sizes(packing, 1, 2, 6).chunks_per_rank, 6);
  EXPECT_EQ(batch_sizes(packing, 1, 1, 6).chunks_per_rank, 1);
}

}  // namespace batch_loader_test
}  // namespace hawser::batches
