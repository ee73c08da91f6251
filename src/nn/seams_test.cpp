// The default seams are the single-device behaviour.
#include "nn/seams.h"

#include <gtest/gtest.h>

#include "nn/testing/context.h"
#include "ops/moe/dispatch.h"

namespace hawser::nn {
namespace seams_test {

using testing::TestContext;

TEST(Seams, DefaultsEnqueueNothingAndReturnTheirArguments) {
  MetaDevice device;
  TestContext ctx(device, DType::f32);
  const TensorView x = ctx.make(DType::f32, {6, 4}), offsets = ctx.make(DType::i32, {3});
  const Seams seams;
  const auto gather = seams.redistribute->gather(ctx, x, Redistribute::Rows::together);
  ASSERT_EQ(gather->pieces(), 1);
  EXPECT_EQ(gather->wait(0).rows.view.raw(), x.raw());
  EXPECT_EQ(gather->wait(0).first_row, 0);
  EXPECT_EQ(gather->all().view.raw(), x.raw());
  const auto sum = seams.redistribute->sum(ctx, x);
  ASSERT_EQ(sum->pieces(), 1);
  EXPECT_EQ(sum->target(0).rows.raw(), x.raw());
  EXPECT_EQ(sum->target(0).first_row, 0);
  sum->written(0);
  sum->finish();
  seams.tokens->route(ctx, {.offsets = offsets, .expert_offsets = offsets});
  EXPECT_THROW(seams.tokens->route(ctx, {.counts = offsets}), InternalError);
  seams.tensor_reduce->sum(ctx, x);
  seams.tensor_reduce->gather(ctx, x, x);
  EXPECT_TRUE(device.trace().items.empty());
}

TEST(Seams, RowsOfExpertsSufficeForAllTokens) {
  const auto rows = [](std::int64_t tokens, std::int64_t local_experts, int pieces) {
    return TokenExchange::Sizes{
        .tokens = tokens, .per_token = 2, .experts = 8, .local_experts = local_experts, .options = {.pieces = pieces}}
        .expert_rows();
  };
  EXPECT_EQ(rows(100, 8, 1), ops::expert_rows(100, 2, 8));
  EXPECT_EQ(rows(100, 1, 1), 896);  // all 800 tokens
  EXPECT_EQ(rows(3, 4, 1), 4 * 128);
  EXPECT_EQ(rows(100, 4, 4), 4 * 256);  // of each expert, all 200 tokens
  TokenExchange::Sizes sizes{.tokens = 1000, .per_token = 2, .experts = 8, .local_experts = 2};
  EXPECT_EQ(sizes.expert_rows(), ops::expert_rows(4000, 2, 2));
  EXPECT_EQ(sizes.max_sent_to_expert(), 1000);
  sizes.row_bound = 1.5;
  EXPECT_EQ(sizes.expert_rows(), 3072 + 2 * 128);
  sizes.options.pieces = 2;
  EXPECT_EQ(sizes.expert_rows(), 2 * (1536 + 128));
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
    const auto call = seams.attention->begin(ctx, {}, tensors);
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

}  // namespace seams_test
}  // namespace hawser::nn
