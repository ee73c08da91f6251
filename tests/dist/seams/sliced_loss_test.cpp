// The loss of a vocabulary that two ranks have slices of, in chunks of rows, with and without sequence parallelism. The
// chunks have different numbers of labels, one has none, and the last column of rank 1 is padding.
#include "nn/blocks/sliced_loss.h"

#include <gtest/gtest.h>

#include "parallel/tensor/sequence_parallel.h"
#include "parallel/tensor/tensor_parallel.h"
#include "parallel/tensor/tensor_sums.h"
#include "seams.h"

namespace hawser::testing {
namespace sliced_loss_test {

using nn::testing::distance;
using nn::testing::get;
using nn::testing::normals;
using nn::testing::TestContext;
using Vector = std::vector<double>;

constexpr std::size_t kRows = 76, kWidth = 6, kVocabulary = 11, kColumns = 6;

enum class Ranks { one, two_with_all_rows, two_with_rows_of_their_own };

// Of the rows of the chunks most, none, and every third have a label.
Vector labels() {
  Vector out;
  for (std::size_t row = 0; row < kRows; ++row) {
    const bool has = row < 32 ? row % 5 != 3 : row >= 64 && row % 3 == 0;
    out.push_back(has ? static_cast<double>(row % kVocabulary) : -100);
  }
  return out;
}

// Rank 1 has a column of padding.
Vector own_columns(const Vector& of_all, std::size_t width) {
  const auto first = static_cast<std::size_t>(pair().index()) * kColumns;
  Vector out = rows_of(of_all, width, range(first, std::min(first + kColumns, kVocabulary)));
  out.resize(kColumns * width, 100);
  return out;
}

Vector own_rows(const Vector& of_all) {
  const std::size_t count = kRows / 2, first = static_cast<std::size_t>(pair().index()) * count;
  return rows_of(of_all, kWidth, range(first, first + count));
}

struct Result {
  double loss = 0, loss_alone = 0;
  Vector dh, dw, db;
};

// logit_bytes 1: three chunks, if one piece has all rows.
Result loss_of(Ranks ranks, std::int64_t logit_bytes, std::int64_t piece_rows, DType dtype) {
  const auto device = make_cpu_device({.random_delay_s = 2e-4});
  TestContext ctx(*device, dtype);
  const bool two = ranks != Ranks::one, own = ranks == Ranks::two_with_rows_of_their_own;
  const std::int64_t rows = own ? kRows / 2 : kRows, columns = two ? kColumns : kVocabulary, index = pair().index();
  ctx.rows_ = {rows, kRows, own ? index * rows : 0};
  ctx.batch_.labels = ctx.make(DType::i32, {kRows}, labels());
  if (two) ctx.seams_.tensor_reduce = std::make_shared<parallel::TensorSums>(pair());
  if (two) ctx.seams_.redistribute = std::make_shared<parallel::TensorParallel>(pair(), piece_rows);
  if (own) ctx.seams_.redistribute = std::make_shared<parallel::SequenceParallel>(pair());
  Vector w = normals("w", kVocabulary * kWidth), b = normals("b", kVocabulary), h = normals("h", kRows * kWidth);
  if (two) w = own_columns(w, kWidth), b = own_columns(b, 1);
  if (own) h = own_rows(h);
  ctx.weights_ = {ctx.make(dtype, {columns, kWidth}, w)};
  const TensorView h_view = ctx.make(dtype, {rows, kWidth}, h), dh = ctx.make(dtype, {rows, kWidth}),
                   dw = ctx.make(dtype, {columns, kWidth}), db = ctx.make(dtype, {columns}),
                   sum = ctx.make(DType::f32, {2}, {0, 0}), alone = ctx.make(DType::f32, {2}, {0, 0}),
                   inverse_targets = ctx.make(DType::f32, {1}, {1.0 / 30});
  const nn::SlicedProjection projection{.linear = {.weight = 0},
                                        .vocabulary = {.begin = two ? index * columns : 0, .total = kVocabulary},
                                        .bias = ctx.make(dtype, {columns}, b),
                                        .logit_bytes = logit_bytes};
  nn::sliced_loss(ctx, projection, h_view, dh, {inverse_targets, sum}, {{dw}, {db}});
  nn::sliced_loss(ctx, projection, h_view, {}, {inverse_targets, alone}, {});
  ctx.finish();
  return {get(sum)[0] + get(sum)[1], get(alone)[0] + get(alone)[1], get(dh), get(dw), get(db)};
}

TEST(SlicedLoss, InChunksOnTwoRanksIsThatOfOneRank) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Result one = loss_of(Ranks::one, std::int64_t{1} << 20, kRows, dtype);
    one.dw = own_columns(one.dw, kWidth);
    one.db = own_columns(one.db, 1);
    if (pair().index() == 1) std::fill_n(one.dw.end() - kWidth, kWidth, 0.0), one.db.back() = 0;
    const double max = dtype == DType::f32 ? 1e-6 : 1e-2;
    const auto expect = [&](const Result& got, const Vector& dh) {
      EXPECT_NEAR(got.loss, one.loss, 1e-6 * one.loss);
      EXPECT_NEAR(got.loss_alone, one.loss, 1e-6 * one.loss);
      EXPECT_LT(distance(got.dh, dh), max);
      EXPECT_LT(distance(got.dw, one.dw), max);
      EXPECT_LT(distance(got.db, one.db), max);
    };
    for (const std::int64_t piece_rows : {std::int64_t{19}, parallel::TensorParallel::kPieceRows}) {
      SCOPED_TRACE(cat("pieces of at least ", piece_rows, " rows"));
      expect(loss_of(Ranks::two_with_all_rows, 1, piece_rows, dtype), one.dh);
    }
    SCOPED_TRACE("sequence parallelism");
    expect(loss_of(Ranks::two_with_rows_of_their_own, 1, kRows, dtype), own_rows(one.dh));
  }
}

}  // namespace sliced_loss_test
}  // namespace hawser::testing
