// The default seams are the single-device behaviour.
#include "nn/seams.h"

#include <gtest/gtest.h>

#include "nn/testing/context.h"
#include "ops/moe/dispatch.h"

namespace hawser::nn {
namespace {

using testing::TestContext;

TEST(Seams, DefaultsEnqueueNothingAndReturnTheirArguments) {
  MetaDevice device;
  TestContext ctx(device, DType::f32);
  const TensorView x = ctx.make(DType::f32, {6, 4}), offsets = ctx.make(DType::i32, {3});
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
  const TokenExchange::Routing routing{.offsets = offsets, .expert_offsets = offsets};
  seams.tokens->route(ctx, routing);
  EXPECT_EQ(seams.tokens->dispatch(ctx, routing, x).raw(), x.raw());
  EXPECT_EQ(seams.tokens->combine(ctx, routing, x).raw(), x.raw());
  EXPECT_THROW(seams.tokens->route(ctx, {.counts = offsets}), InternalError);
  seams.tensor_reduce->sum(ctx, x);
  seams.tensor_reduce->maximum(ctx, x);
  EXPECT_TRUE(device.trace().items.empty());
}

TEST(Seams, RowsOfExpertsSufficeForAllTokens) {
  EXPECT_EQ(TokenExchange::max_expert_rows(100, 2, 8, 8), ops::expert_rows(100, 2, 8));
  EXPECT_EQ(TokenExchange::max_expert_rows(100, 2, 8, 1), 896);  // all 800 tokens
  EXPECT_EQ(TokenExchange::max_expert_rows(3, 2, 8, 4), 4 * 128);
}

TEST(Seams, AttentionIsOnePartOverTheLocalDiagonalBlocks) {
  MetaDevice device;
  TestContext ctx(device, DType::f32);
  testing::set_batch(ctx, {{2, 4}}, 4);
  const auto heads = [&](std::int64_t count) { return ctx.make(DType::f32, {6, count, 4}); };
  AttentionTensors tensors{
      .q = heads(6), .k = heads(3), .v = heads(3), .o = heads(6), .lse = ctx.make(DType::f32, {6, 6})};
  const Seams seams;
  for (const bool backward : {false, true}) {
    if (backward) tensors.d_o = heads(6), tensors.dq = heads(6), tensors.dk = heads(3), tensors.dv = heads(3);
    const auto call =
        backward ? seams.attention->backward(ctx, {}, tensors) : seams.attention->forward(ctx, {}, tensors);
    ASSERT_EQ(call->parts(), 1);
    const AttentionPart part = call->wait(0);
    for (const auto member : {&AttentionTensors::q, &AttentionTensors::k, &AttentionTensors::v, &AttentionTensors::o,
                              &AttentionTensors::lse, &AttentionTensors::d_o, &AttentionTensors::dq,
                              &AttentionTensors::dk, &AttentionTensors::dv}) {
      EXPECT_EQ((part.tensors.*member).raw(), (tensors.*member).raw());
    }
    EXPECT_EQ(part.segments.raw(), ctx.batch().diagonal.raw());
    EXPECT_EQ(part.segment_count.raw(), ctx.batch().diagonal_count.raw());
    EXPECT_EQ(part.mask, AttentionMask());
    EXPECT_TRUE(part.first);
    call->computed(0);
    call->finish_queries();
    if (backward) call->finish_keys();
  }
  const AttentionTensors some = tensors.kv_heads(1, 2);
  EXPECT_EQ(some.q.shape(), (Shape{6, 4, 4}));
  EXPECT_EQ(some.q.raw(), tensors.q.slice(1, 2, 4).raw());
  EXPECT_EQ(some.dk.raw(), tensors.dk.slice(1, 1, 2).raw());
  EXPECT_EQ(some.lse.raw(), tensors.lse.rows(2, 4).raw());
  EXPECT_TRUE(device.trace().items.empty());
}

}  // namespace
}  // namespace hawser::nn
