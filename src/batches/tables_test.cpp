// Tables that a model declares: rows of a token table in the order of the ids, entries of sequences on all ranks.
#include <gtest/gtest.h>

#include <cstring>

#include "base/error.h"
#include "batches/batch_loader.h"

namespace hawser::batches {
namespace tables_test {

using Entry = TableSpec::Entry;

const std::vector<TableSpec> kTables = {
    {.name = "type_ids", .dtype = DType::u8, .padding = 7},
    {.name = "pairs", .dtype = DType::f32, .width = 2, .padding = -1.5},
    {.name = "label", .dtype = DType::i64, .entry = Entry::sequence, .padding = -100},
    {.name = "span", .dtype = DType::i32, .entry = Entry::sequence, .width = 2, .padding = -1},
};

// One document of `length` tokens. Entry i of "pairs" has the sequence's number and i.
Sequence sequence_of(std::int64_t number, std::int32_t length) {
  Sequence s;
  s.document_lengths = {length};
  s.positions = positions_of(s.document_lengths);
  s.ids.assign(static_cast<std::size_t>(length), 1);
  s.labels = s.ids;
  std::vector<std::uint8_t> types;
  std::vector<float> pairs;
  for (std::int32_t i = 0; i < length; ++i) {
    types.push_back(static_cast<std::uint8_t>(i % 3));
    pairs.insert(pairs.end(), {static_cast<float>(number), static_cast<float>(i)});
  }
  s.tables = {{"type_ids", TableValues(types)},
              {"pairs", TableValues(pairs)},
              {"label", TableValues(std::vector<std::int64_t>{1000 + number})},
              {"span", TableValues(std::vector<std::int32_t>{static_cast<std::int32_t>(number), length})}};
  return s;
}

template <class T>
std::vector<T> values_of(const MicroBatch& batch, const char* name) {
  const TableValues& table = batch.tables.at(name);
  EXPECT_EQ(table.dtype(), dtype_of<T>());
  std::vector<T> values(static_cast<std::size_t>(table.elements()));
  std::memcpy(values.data(), table.data(), static_cast<std::size_t>(table.bytes()));
  return values;
}

TEST(Tables, FollowTheRowsOfEveryRank) {
  const std::vector<Sequence> sequences = {sequence_of(0, 23), sequence_of(1, 5)};  // the third is missing
  const auto shape_of = [](int context, int heads, int chunks, SequenceSplit split) {
    BatchShape shape{{.sequences = 3,
                      .sequence_length = 25,
                      .context = context,
                      .context_heads = heads,
                      .chunks_per_rank = chunks,
                      .split = split}};
    shape.row_multiple = 2;
    shape.tables = kTables;
    return shape;
  };
  for (const BatchShape& shape :
       {shape_of(1, 1, 1, SequenceSplit::zigzag), shape_of(2, 1, 2, SequenceSplit::zigzag),
        shape_of(4, 2, 2, SequenceSplit::zigzag), shape_of(2, 1, 3, SequenceSplit::by_work)}) {
    for (int rank = 0; rank < shape.context; ++rank) {
      const MicroBatch batch = make_micro_batch(sequences, shape, rank);
      const auto types = values_of<std::uint8_t>(batch, "type_ids");
      const auto pairs = values_of<float>(batch, "pairs");
      ASSERT_EQ(static_cast<std::int64_t>(types.size()), shape.local_rows());
      ASSERT_EQ(pairs.size(), 2 * types.size());
      for (std::size_t row = 0; row < types.size(); ++row) {
        const bool token = batch.token_mask[row] == 1;
        const std::int32_t sequence = batch.row_ids[2 * row], index = batch.row_ids[2 * row + 1];
        ASSERT_EQ(types[row], token ? index % 3 : 7);
        ASSERT_EQ(pairs[2 * row], token ? static_cast<float>(sequence) : -1.5f);
        ASSERT_EQ(pairs[2 * row + 1], token ? static_cast<float>(index) : -1.5f);
        // What nn::BatchViews says of the sequence of a row.
        ASSERT_EQ(static_cast<std::int64_t>(row) / (shape.local_rows() / shape.sequences), sequence);
      }
      EXPECT_EQ(values_of<std::int64_t>(batch, "label"), (std::vector<std::int64_t>{1000, 1001, -100}));
      EXPECT_EQ(values_of<std::int32_t>(batch, "span"), (std::vector<std::int32_t>{0, 23, 1, 5, -1, -1}));
    }
  }
}

class OneSequence : public SequenceSet {
 public:
  explicit OneSequence(Sequence sequence) : sequence_(std::move(sequence)) {}
  std::int64_t size() const override { return 2; }
  Sequence get(std::int64_t) const override { return sequence_; }
  std::int64_t max_documents() const override { return 1; }

 private:
  Sequence sequence_;
};

// What opening the data throws.
std::string rejection(const Sequence& sequence, std::vector<TableSpec> tables) {
  BatchShape shape{{.sequence_length = 25}};
  shape.tables = std::move(tables);
  try {
    BatchLoader(std::make_shared<OneSequence>(sequence), shape, {}, {.shuffle = false}).load(0, 0);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(Tables, OfTheDataAreThoseOfTheModel) {
  const Sequence sequence = sequence_of(0, 5);
  EXPECT_EQ(rejection(sequence, kTables), "");
  Sequence other = sequence;
  other.tables.erase("span");
  EXPECT_EQ(rejection(other, kTables), "the data have no such table, which the model reads at span");
  other.tables.emplace("spam", TableValues(std::vector<std::int32_t>{0, 5}));
  EXPECT_EQ(rejection(other, {kTables.begin(), kTables.end() - 1}),
            "the data have a table that the model does not read at spam");
  EXPECT_EQ(rejection(sequence, {}), "the data have a table that the model does not read at label");
  other = sequence;
  other.tables["label"] = TableValues(std::vector<std::int32_t>{1});
  EXPECT_EQ(rejection(other, kTables),
            "a table of the data has another dtype than the model reads (expected int64, got int32) at label");
  other = sequence;
  other.tables["pairs"] = TableValues(std::vector<float>(5));
  EXPECT_EQ(rejection(other, kTables),
            "a sequence of 5 tokens has a table of another length (expected 10, got 5) at pairs");
}

TEST(Tables, ThatCannotBeAreRejected) {
  EXPECT_NO_THROW(check_tables(kTables));
  for (const TableSpec& wrong :
       {TableSpec{.name = ""}, TableSpec{.name = "label"}, TableSpec{.name = "x", .dtype = DType::nf4},
        TableSpec{.name = "x", .width = 0}, TableSpec{.name = "x", .dtype = DType::u8, .padding = -1},
        TableSpec{.name = "x", .dtype = DType::i32, .padding = 0.5}}) {
    std::vector<TableSpec> tables = kTables;
    tables.push_back(wrong);
    EXPECT_THROW(check_tables(tables), InternalError) << wrong.name << to_string(wrong.dtype);
  }
}

// Resumed runs find changed data by the hash of a step.
TEST(Tables, AreInTheHashOfAStep) {
  const auto hash = [](const Sequence& sequence) {
    BatchShape shape{{.sequence_length = 25}};
    shape.tables = kTables;
    return BatchLoader(std::make_shared<OneSequence>(sequence), shape, {}, {}).step_hash(0);
  };
  Sequence other = sequence_of(0, 5);
  EXPECT_EQ(hash(other), hash(sequence_of(0, 5)));
  other.tables["label"] = TableValues(std::vector<std::int64_t>{1});
  EXPECT_NE(hash(other), hash(sequence_of(0, 5)));
}

}  // namespace tables_test
}  // namespace hawser::batches
