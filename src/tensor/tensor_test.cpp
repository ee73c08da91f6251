#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "tensor/batch_table.h"
#include "tensor/named_state.h"

namespace hawser {
namespace tensor_test {

TEST(Bf16, RoundsToNearestEvenAndKeepsNan) {
  EXPECT_EQ(Bf16(1.0f).bits, 0x3f80);
  EXPECT_EQ(Bf16(std::bit_cast<float>(0x3f808000u)).bits, 0x3f80);  // tie to even
  EXPECT_EQ(Bf16(std::bit_cast<float>(0x3f818000u)).bits, 0x3f82);
  EXPECT_TRUE(std::isnan(static_cast<float>(Bf16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_TRUE(std::isinf(static_cast<float>(Bf16(std::numeric_limits<float>::max()))));
}

TEST(TensorView, SlicesRowsAndColumns) {
  const auto device = make_cpu_device();
  const Storage storage(*device, DType::f32, {4, 6});
  std::iota(storage.view().data<float>(), storage.view().data<float>() + 24, 0.0f);
  const TensorView middle = storage.view().rows(1, 2).columns(2, 4);
  EXPECT_FALSE(middle.dense());
  EXPECT_EQ(*middle.data<float>(), 8.0f);
  const TensorView heads = middle.split_last(2, 2);
  EXPECT_EQ(heads.shape(), (Shape{2, 2, 2}));
  EXPECT_EQ(heads.stride(0), 6);
  EXPECT_EQ(heads.stride(1), 2);
  const Access a = reads(heads);
  EXPECT_EQ(a.rows, 2);
  EXPECT_EQ(a.row_bytes, 16);
  EXPECT_EQ(a.stride, 24);
  EXPECT_THROW(middle.reshape({8}), InternalError);
  EXPECT_THROW(storage.view().rows(3, 2), InternalError);
  EXPECT_THROW(storage.view().data<Bf16>(), InternalError);
}

TEST(TensorView, SomeColumnsOfOneRowAreDense) {
  const auto device = make_cpu_device();
  const Storage storage(*device, DType::f32, {4, 6});
  const TensorView row = storage.view().rows(2, 1).columns(1, 4);
  EXPECT_TRUE(row.dense());
  EXPECT_EQ(row.reshape({2, 2}).raw(), row.raw());
}

// With gaps of several widths an access is all bytes from the first element to the last.
TEST(TensorView, AnAccessHasEveryElement) {
  const auto device = make_cpu_device();
  const Storage storage(*device, DType::f32, {3, 6, 8});
  const TensorView inner = storage.view().slice(1, 1, 3).slice(2, 2, 4);
  const TensorView last = inner.slice(0, 2, 1).slice(1, 2, 1).slice(2, 3, 1);
  EXPECT_TRUE(overlap(reads(inner), writes(last)));
  const Access a = reads(inner);
  EXPECT_EQ(a.address + static_cast<std::uint64_t>(a.row_bytes), reinterpret_cast<std::uint64_t>(last.raw()) + 4);
}

// Every range of a tensor is covered once, in order, by at most 2 * rank - 1 boxes.
TEST(TableValues, CopiesEntriesFromTheFirstOn) {
  const TableSpec table{.name = "t", .dtype = DType::i32, .width = 2, .padding = -1};
  const TableValues from(std::vector<std::int32_t>{0, 1, 10, 11, 20, 21, 30, 31});
  TableValues to(table, 4);
  to.copy(table, from, 2, 2, 1);
  const auto* values = reinterpret_cast<const std::int32_t*>(to.data());
  EXPECT_EQ(std::vector<std::int32_t>(values, values + 8), (std::vector<std::int32_t>{-1, -1, 20, 21, 30, 31, -1, -1}));
  EXPECT_THROW(to.copy(table, from, 3, 2, 0), InternalError);
}

TEST(BoxesOfRange, CoverEveryRangeWithFewBoxes) {
  const auto device = make_cpu_device();
  for (const Shape& shape : {Shape{24}, Shape{4, 6}, Shape{2, 3, 4}, Shape{1, 24}, Shape{24, 1}}) {
    const Storage storage(*device, DType::i32, {24});
    for (std::int64_t begin = 0; begin <= 24; ++begin) {
      for (std::int64_t count = 0; begin + count <= 24; ++count) {
        const auto boxes = boxes_of_range(shape, begin, count, storage.view().rows(begin, count));
        EXPECT_LE(static_cast<int>(boxes.size()), 2 * shape.rank() - 1);
        std::int64_t at = begin;
        for (const Box& box : boxes) {
          // Walk the box row-major: its elements must be the next ones of the flat range.
          std::int64_t flat_start = 0;
          for (int d = 0; d < shape.rank(); ++d) {
            EXPECT_LE(box.offset[d] + box.extent[d], shape[d]);
            flat_start = flat_start * shape[d] + box.offset[d];
          }
          EXPECT_EQ(flat_start, at);
          EXPECT_EQ(box.view.data<std::int32_t>() - storage.view().data<std::int32_t>(), at);
          std::int64_t last = 0;
          for (int d = 0; d < shape.rank(); ++d) last = last * shape[d] + box.offset[d] + box.extent[d] - 1;
          EXPECT_EQ(last - flat_start + 1, box.extent.elements());  // contiguous
          at += box.extent.elements();
        }
        EXPECT_EQ(at, begin + count);
      }
    }
  }
}

}  // namespace tensor_test
}  // namespace hawser
