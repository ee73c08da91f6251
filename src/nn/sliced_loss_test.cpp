// The loss of a sliced vocabulary in chunks of rows of any size.
#include "nn/blocks/sliced_loss.h"

#include <gtest/gtest.h>

#include "nn/testing/block_reference.h"

namespace hawser::nn {
namespace sliced_loss_test {

using testing::distance;
using testing::get;
using testing::normals;
using testing::TestContext;
using testing::Vector;

constexpr std::int64_t kRows = 75, kWidth = 6, kColumns = 11;

struct Result {
  Vector loss, dh, dw, db;
};

Result loss_with(std::int64_t logit_bytes, DType dtype) {
  const auto device = make_cpu_device();
  TestContext ctx(*device, dtype);
  ctx.rows_ = {kRows, kRows, 0};
  Vector labels;
  for (std::int64_t row = 0; row < kRows; ++row)
    labels.push_back(row % 5 == 3 ? -100 : static_cast<double>(row % kColumns));
  ctx.batch_.labels = ctx.make(DType::i32, {kRows}, labels);
  ctx.weights_ = {ctx.make(dtype, {kColumns, kWidth}, normals("w", kColumns * kWidth))};
  const TensorView h = ctx.make(dtype, {kRows, kWidth}, normals("h", kRows * kWidth)),
                   bias = ctx.make(dtype, {kColumns}, normals("b", kColumns)), dh = ctx.make(dtype, {kRows, kWidth}),
                   sum = ctx.make(DType::f32, {2}, {0, 0}), dw = ctx.make(dtype, {kColumns, kWidth}),
                   db = ctx.make(dtype, {kColumns});
  const SlicedProjection projection{
      .linear = {.weight = 0}, .vocabulary = {.begin = 0, .total = kColumns}, .bias = bias, .logit_bytes = logit_bytes};
  sliced_loss(ctx, projection, h, dh, {ctx.make(DType::f32, {1}, {1.0 / 60}), sum}, {{dw}, {db}});
  ctx.finish();
  return {get(sum), get(dh), get(dw), get(db)};
}

// At least 32 rows are a chunk: here three.
TEST(SlicedLoss, DoesNotDependOnItsChunks) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Result whole = loss_with(std::int64_t{1} << 20, dtype), chunks = loss_with(1, dtype);
    const double max = dtype == DType::f32 ? 1e-6 : 1e-2;
    EXPECT_NEAR(chunks.loss[0], whole.loss[0], 1e-6 * whole.loss[0]);
    EXPECT_LT(distance(chunks.dh, whole.dh), max);
    EXPECT_LT(distance(chunks.dw, whole.dw), max);
    EXPECT_LT(distance(chunks.db, whole.db), max);
  }
}

}  // namespace sliced_loss_test
}  // namespace hawser::nn
