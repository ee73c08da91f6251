// The step record and the batch tables: named fields and tables at the right places.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <string>

#include "step/batch_tables.h"
#include "step/step_record.h"

namespace hawser::step {
namespace step_test {

struct Mixed {
  float first = 0;
  std::int32_t count = 0;
  PreciseSum sum;
};

TEST(StepRecord, FieldsAreViewsOfTheirMembers) {
  Mixed record{.first = 1.5f, .count = 7, .sum = {.high = 2, .low = 3}};
  std::array<float, RecordView<Mixed>::kFloats> device{};
  std::memcpy(device.data(), &record, sizeof(record));
  const RecordView<Mixed> view(TensorView(reinterpret_cast<std::byte*>(device.data()), DType::f32,
                                          {RecordView<Mixed>::kFloats}, DeviceKind::cpu));
  EXPECT_EQ(*view.field(&Mixed::first).data<float>(), 1.5f);
  EXPECT_EQ(*view.field(&Mixed::count).data<std::int32_t>(), 7);
  const TensorView sum = view.field(&Mixed::sum);
  EXPECT_EQ(sum.shape(), Shape{2});
  EXPECT_EQ(sum.data<float>()[1], 3);
}

std::set<std::string> used(const BatchBounds& bounds) {
  std::set<std::string> names;
  for (const BatchTable& table : batch_tables()) {
    if (table.shape(bounds).elements() == 0) continue;
    EXPECT_TRUE(names.insert(table.name).second) << table.name << " twice";
  }
  return names;
}

TEST(BatchTables, AreUsedAsTheBoundsSay) {
  std::set<std::string> expected{"ids", "labels", "positions", "diagonal", "diagonal_count"};
  EXPECT_EQ(used({.rows = 8}), expected);
  EXPECT_EQ(used({.rows = 8, .logit_positions = 2, .uses_kv_cache = true}),
            (std::set<std::string>{"ids", "labels", "positions", "diagonal", "diagonal_count", "logit_positions",
                                   "slot_mapping"}));
  EXPECT_EQ(used({.rows = 8, .random_numbers = true}).count("row_ids"), 1u);
  const auto all = used({.rows = 8, .context = 2, .random_numbers = true, .all_row_ids = true});
  EXPECT_EQ(all.count("sequence_row_ids") + all.count("source_row_ids"), 2u);
  EXPECT_EQ(used({.rows = 8, .token_mask = true}).count("token_mask"), 1u);
  expected.insert({"off_diagonal", "off_diagonal_count", "gather_index"});
  EXPECT_EQ(used({.rows = 8, .context = 2, .off_diagonal = 4}), expected);
  BatchBounds bounds{.rows = 8, .context = 2, .off_diagonal = 4, .source_tables = true};
  bounds.masks = {{.sources = 4}};
  expected.insert({"by_source", "by_source_count"});
  EXPECT_EQ(used(bounds), expected);
  EXPECT_EQ(used({.rows = 8, .context = 2, .context_heads = 2}).count("heads_index"), 0u);
  EXPECT_EQ(used({.rows = 8, .sequences = 2, .context = 2, .context_heads = 2}),
            (std::set<std::string>{"ids", "labels", "positions", "diagonal", "diagonal_count", "heads_index"}));
}

TEST(BatchTables, EachGivesItsContentsAndHasItsOwnView) {
  HostBatch batch;
  std::int32_t next = 0;
  for (auto field :
       {&HostBatch::ids, &HostBatch::labels, &HostBatch::positions, &HostBatch::heads_index, &HostBatch::gather_index,
        &HostBatch::logit_positions, &HostBatch::row_ids, &HostBatch::token_mask, &HostBatch::slot_mapping,
        &HostBatch::sequence_row_ids, &HostBatch::source_row_ids, &HostBatch::attention_row_ids}) {
    batch.*field = {++next};
  }
  batch.diagonal.assign(3 * kSegmentNumbers, 0);
  batch.off_diagonal = {std::vector<std::int32_t>(2 * kSegmentNumbers, 0)};
  batch.by_source = {{std::vector<std::int32_t>(kSegmentNumbers, 10), std::vector<std::int32_t>(kSegmentNumbers, 11)}};
  std::vector<std::int32_t> first;
  nn::BatchViews views;
  std::byte memory{};
  for (const BatchTable& table : batch_tables()) {
    table.contents(batch, {.off_diagonal = 2}, [&](const void* data, std::int64_t bytes) {
      EXPECT_EQ(bytes % size_of(table.dtype), 0) << table.name;
      std::int32_t number = -1;
      std::memcpy(&number, data, sizeof(number));
      first.push_back(number);
    });
    EXPECT_TRUE((views.*table.view).empty()) << table.name << " has the view of another table";
    views.*table.view = TensorView(&memory, table.dtype, {1}, DeviceKind::cpu);
  }
  EXPECT_EQ(first, (std::vector<std::int32_t>{1, 2, 3, 0, 3, 0, 2, 10, 1, 5, 4, 6, 7, 12, 10, 11, 8, 9}));
}

// Tables of a model follow the fixed ones.
TEST(BatchTables, OfTheModelAreGivenByName) {
  const BatchBounds bounds{
      .rows = 4,
      .sequences = 2,
      .tables = {{.name = "type_ids", .dtype = DType::u8},
                 {.name = "span", .dtype = DType::i64, .entry = TableSpec::Entry::sequence, .width = 2}}};
  const std::size_t fixed = batch_tables().size();
  ASSERT_EQ(table_count(bounds), fixed + 2);
  EXPECT_STREQ(batch_tables()[1].name, "labels");
  EXPECT_EQ(table_buffer(bounds, 1).shape, Shape{4});
  EXPECT_EQ(table_buffer(bounds, fixed).shape, Shape{4});
  EXPECT_EQ(table_buffer(bounds, fixed).dtype, DType::u8);
  EXPECT_EQ(table_buffer(bounds, fixed + 1).shape, (Shape{2, 2}));
  HostBatch batch;
  batch.tables.emplace("type_ids", TableValues(std::vector<std::uint8_t>{5, 6, 7, 8}));
  const auto given = [&](std::size_t index) {
    std::vector<std::uint8_t> all;
    table_contents(batch, bounds, index, [&](const void* data, std::int64_t bytes) {
      all.assign(static_cast<const std::uint8_t*>(data), static_cast<const std::uint8_t*>(data) + bytes);
    });
    return all;
  };
  EXPECT_EQ(given(fixed), (std::vector<std::uint8_t>{5, 6, 7, 8}));
  EXPECT_THROW(given(fixed + 1), InternalError);  // missing
  batch.tables["span"] = TableValues(std::vector<std::int32_t>(4));
  EXPECT_THROW(given(fixed + 1), InternalError);
  batch.tables["span"] = TableValues(std::vector<std::int64_t>(3));
  EXPECT_THROW(given(fixed + 1), InternalError);
  batch.tables["span"] = TableValues(std::vector<std::int64_t>(4));
  EXPECT_EQ(given(fixed + 1).size(), 32u);
  std::array<std::byte, 32> memory{};
  const nn::BatchViews views = batch_views(bounds, [&](std::size_t index) {
    const TableBuffer table = table_buffer(bounds, index);
    return index < fixed ? TensorView() : TensorView(memory.data(), table.dtype, table.shape, DeviceKind::cpu);
  });
  EXPECT_EQ(views.table("span", DType::i64).shape(), (Shape{2, 2}));
  EXPECT_THROW(views.table("span", DType::i32), InternalError);
  EXPECT_THROW(views.table("spans", DType::i64), InternalError);
}

}  // namespace step_test
}  // namespace hawser::step
