// The default seams are the single-device behaviour.
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
  const auto gather = seams.redistribute->gather(ctx, x);
  ASSERT_EQ(gather->pieces(), 1);
  EXPECT_EQ(gather->wait(0).rows.view.raw(), x.raw());
  EXPECT_EQ(gather->wait(0).first_row, 0);
  EXPECT_EQ(gather->all().view.raw(), x.raw());
  const auto sum = seams.redistribute->sum(ctx, x);
  ASSERT_EQ(sum->pieces(), 1);
  EXPECT_EQ(sum->target(0).rows.view.raw(), x.raw());
  EXPECT_EQ(sum->target(0).first_row, 0);
  sum->written(0);
  sum->finish();
  const TokenExchange::Dispatched out = seams.tokens->dispatch(ctx, x, counts);
  EXPECT_EQ(out.tokens.raw(), x.raw());
  EXPECT_EQ(out.counts.raw(), counts.raw());
  EXPECT_EQ(seams.tokens->combine(ctx, x, counts).raw(), x.raw());
  seams.tensor_reduce->sum(ctx, x);
  seams.tensor_reduce->maximum(ctx, x);
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
    const auto seam_call =
        backward ? seams.attention->backward(ctx, 0, k, v, dk, dv) : seams.attention->forward(ctx, 0, k, v);
    ASSERT_EQ(seam_call->parts(), 1);
    const AttentionPart part = seam_call->wait(0);
    EXPECT_EQ(part.k.raw(), k.raw());
    EXPECT_EQ(part.v.raw(), v.raw());
    EXPECT_EQ(part.segments.raw(), ctx.batch().diagonal.raw());
    EXPECT_EQ(part.segment_count.raw(), ctx.batch().diagonal_count.raw());
    EXPECT_TRUE(part.causal && part.first);
    EXPECT_EQ(part.head_begin, 0);
    EXPECT_EQ(part.heads, 3);
    EXPECT_EQ(part.dk.raw(), backward ? dk.raw() : nullptr);
    EXPECT_EQ(part.dv.raw(), backward ? dv.raw() : nullptr);
    seam_call->add_gradient(0);
    seam_call->finish();
  }
  EXPECT_TRUE(device.trace().items.empty());
}

}  // namespace
}  // namespace hawser::nn
