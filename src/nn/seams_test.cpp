// The default seams do nothing: layers with them are the single-device layers.
#include "nn/seams.h"

#include <gtest/gtest.h>

#include "nn/testing/context.h"

namespace hawser::nn {
namespace {

using testing::TestContext;

TEST(Seams, DefaultsEnqueueNothingAndReturnTheirArguments) {
  MetaDevice device;
  TestContext ctx(device, DType::f32);
  const TensorView x = ctx.make(DType::f32, {6, 4}), counts = ctx.make(DType::i32, {2});
  const Seams seams;
  for (const Boundary boundary : {Boundary::column_input, Boundary::row_output}) {
    EXPECT_EQ(seams.redistribute->forward(ctx, boundary, x).raw(), x.raw());
    EXPECT_EQ(seams.redistribute->backward(ctx, boundary, x).raw(), x.raw());
  }
  const TokenExchange::Rows rows = seams.tokens->dispatch(ctx, x, counts);
  EXPECT_EQ(rows.rows.raw(), x.raw());
  EXPECT_EQ(rows.counts.raw(), counts.raw());
  EXPECT_EQ(seams.tokens->combine(ctx, x, counts).raw(), x.raw());
  seams.reduce->sum(ctx, x);
  seams.reduce->maximum(ctx, x);
  EXPECT_TRUE(device.trace().items.empty());
}

TEST(Seams, AttentionIsOnePartOverTheLocalDiagonalBlocks) {
  MetaDevice device;
  TestContext ctx(device, DType::f32);
  testing::set_batch(ctx, {{2, 4}}, 4);
  const TensorView k = ctx.make(DType::f32, {6, 3, 4}), v = ctx.make(DType::f32, {6, 3, 4});
  const TensorView dk = ctx.make(DType::f32, {6, 3, 4}), dv = ctx.make(DType::f32, {6, 3, 4});
  const Seams seams;
  for (const bool backward : {false, true}) {
    const auto session = backward ? seams.attention->backward(ctx, k, v, dk, dv) : seams.attention->forward(ctx, k, v);
    ASSERT_EQ(session->parts(), 1);
    const AttentionPart part = session->wait(0);
    EXPECT_EQ(part.k.raw(), k.raw());
    EXPECT_EQ(part.v.raw(), v.raw());
    EXPECT_EQ(part.segments.raw(), ctx.batch().diagonal.raw());
    EXPECT_EQ(part.segment_count.raw(), ctx.batch().diagonal_count.raw());
    EXPECT_TRUE(part.causal && part.first);
    EXPECT_EQ(part.head_begin, 0);
    EXPECT_EQ(part.heads, 3);
    EXPECT_EQ(part.dk.raw(), backward ? dk.raw() : nullptr);
    EXPECT_EQ(part.dv.raw(), backward ? dv.raw() : nullptr);
    session->add_gradient(0);
    session->finish();
  }
  EXPECT_TRUE(device.trace().items.empty());
}

}  // namespace
}  // namespace hawser::nn
