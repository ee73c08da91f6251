// Labels of rows: those of documents, which are rejected, and where they are in micro-batches.
#include "batches/labels.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "batches/batch_loader.h"

namespace hawser::batches {
namespace labels_test {

constexpr std::int32_t kNone = prepare::kIgnoredLabel;

TEST(Labels, OfDocumentsAreInOneRowOfEach) {
  const std::vector<std::int32_t> lengths{3, 1, 2, 4}, classes{2, 0, kNone, 1};
  EXPECT_EQ(labels_of_documents(lengths, classes, LabelRows::first),
            (std::vector<std::int32_t>{2, kNone, kNone, 0, kNone, kNone, 1, kNone, kNone, kNone}));
  EXPECT_EQ(labels_of_documents(lengths, classes, LabelRows::last),
            (std::vector<std::int32_t>{kNone, kNone, 2, 0, kNone, kNone, kNone, kNone, kNone, 1}));
  EXPECT_THROW(labels_of_documents(lengths, classes, LabelRows::own), InternalError);
  EXPECT_THROW(labels_of_documents(lengths, {1}, LabelRows::first), InternalError);
}

Sequence sequence_of(const std::vector<std::int32_t>& labels, const std::vector<std::int32_t>& lengths) {
  Sequence s{.ids = std::vector<std::int32_t>(labels.size(), 5), .labels = labels, .document_lengths = lengths};
  s.positions = positions_of(lengths);
  return s;
}

BatchShape shape_of(const BatchSizes& sizes, const LabelSpec& labels) {
  BatchShape shape{sizes};
  shape.labels = labels;
  return shape;
}

std::string problem_of(const std::vector<std::int32_t>& labels, const LabelSpec& spec) {
  try {
    const BatchShape shape = shape_of({.sequence_length = 8, .max_documents = 2}, spec);
    make_micro_batch(std::vector{sequence_of(labels, {3, 2})}, shape, 0);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(Labels, ThatTheHeadDoesNotHaveAreRejected) {
  const LabelSpec own{LabelRows::own, 4}, first{LabelRows::first, 4}, last{LabelRows::last, 4};
  EXPECT_EQ(problem_of({0, 3, kNone, 2, 1}, own), "");
  EXPECT_EQ(problem_of({0, kNone, kNone, 3, kNone}, first), "");
  EXPECT_EQ(problem_of({kNone, kNone, 0, kNone, kNone}, last), "");
  const std::string range = "a label that the model's head does not have (expected 0 to 3, or -100 for none, got ";
  // The loss would have no term of it, and its mean would count it.
  EXPECT_EQ(problem_of({0, -1, kNone, 2, 1}, own), range + "-1)");
  EXPECT_EQ(problem_of({0, 4, kNone, 2, 1}, own), range + "4)");
  EXPECT_EQ(problem_of({4, kNone, kNone, kNone, kNone}, first), range + "4)");
  const std::string rows = "a label in another row of a document than the model's head reads (expected classes of ";
  EXPECT_EQ(problem_of({kNone, kNone, kNone, kNone, 1}, first),
            rows + "documents, at their first rows, got row 1 of 2)");
  EXPECT_EQ(problem_of({0, kNone, kNone, kNone, 1}, last), rows + "documents, at their last rows, got row 0 of 3)");
  EXPECT_EQ(problem_of({99, kNone, kNone, kNone, 1}, {}), "") << "next tokens are checked where they are read";
}

class OneSequence : public SequenceSet {
 public:
  OneSequence(Sequence sequence, LabelRows rows) : sequence_(std::move(sequence)), rows_(rows) {}
  std::int64_t size() const override { return 1; }
  std::int64_t max_documents() const override { return 2; }
  LabelRows label_rows() const override { return rows_; }
  Sequence get(std::int64_t) const override { return sequence_; }

 private:
  Sequence sequence_;
  LabelRows rows_;
};

// A step's divisor is the number of labels, on each rank, whose rows have what the sequence has there.
TEST(Labels, AreThoseOfRowsOnEveryRank) {
  const Sequence sequence = sequence_of({kNone, kNone, 2, kNone, 1, kNone, kNone}, {3, 4});
  for (const SequenceSplit split : {SequenceSplit::zigzag, SequenceSplit::by_work}) {
    BatchShape shape = shape_of({.sequence_length = 8, .max_documents = 2, .context = 2}, {LabelRows::own, 3});
    shape.split = split;
    shape.chunks_per_rank = split == SequenceSplit::zigzag ? 2 : 4;
    std::int64_t found = 0;
    for (const int rank : {0, 1}) {
      const BatchLoader loader(std::make_shared<OneSequence>(sequence, LabelRows::own), shape,
                               {.context_rank = rank, .context_ranks = 2}, {.shuffle = false});
      const MicroBatch batch = loader.load(0, 0);
      EXPECT_EQ(batch.step_targets, 2);
      EXPECT_EQ(batch.valid_targets, 2);
      for (std::size_t row = 0; row < batch.labels.size(); ++row) {
        const auto at = static_cast<std::size_t>(batch.row_ids[2 * row + 1]);
        EXPECT_EQ(batch.labels[row], at < sequence.labels.size() ? sequence.labels[at] : kNone) << at;
        if (batch.labels[row] != kNone) ++found;
      }
    }
    EXPECT_EQ(found, 2);
  }
}

TEST(Labels, OfOtherDataAreRejected) {
  const auto problem = [](LabelRows data, LabelRows model) -> std::string {
    try {
      const BatchShape shape = shape_of({.sequence_length = 8, .max_documents = 2}, {model, 3});
      const BatchLoader loader(std::make_shared<OneSequence>(sequence_of({1, kNone}, {2}), data), shape, {}, {});
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(problem(LabelRows::first, LabelRows::first), "");
  EXPECT_EQ(problem(LabelRows::next_token, LabelRows::own),
            "the data lack the labels that the model's head reads (expected labels of rows, got next tokens)");
  EXPECT_EQ(problem(LabelRows::first, LabelRows::last),
            "the data lack the labels that the model's head reads (expected classes of documents, at their last "
            "rows, got classes of documents, at their first rows)");
}

}  // namespace labels_test
}  // namespace hawser::batches
