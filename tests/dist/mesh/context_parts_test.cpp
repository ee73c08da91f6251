// What the parts of attention exchanges say about their tensors: the heads, and the rows of the sequences.
#include "parallel/context/all_gather_exchange.h"
#include "support/context_exchanges.h"
#include "support/exchange_batch.h"
#include "toy_training.h"

namespace hawser {
namespace context_parts_test {

using Split = batches::SequenceSplit;
using nn::AttentionPart;
using nn::AttentionTensors;
using nn::testing::TestContext;

constexpr std::int64_t kHeads = 8, kKvHeads = 4, kHeadDim = 2;

// The number that all elements of a row of a head have.
double number_of(const std::int32_t* row_id, std::int64_t head) {
  return 1e4 * row_id[0] + 1e2 * row_id[1] + static_cast<double>(head);
}

TensorView numbered(TestContext& ctx, std::int64_t heads) {
  const TensorView& ids = ctx.batch().row_ids;
  std::vector<double> values;
  for (std::int64_t i = 0; i < ids.size(0) * heads * kHeadDim; ++i) {
    values.push_back(number_of(ids.data<std::int32_t>() + 2 * (i / (heads * kHeadDim)), i / kHeadDim % heads));
  }
  return ctx.make(DType::f32, {ids.size(0), heads, kHeadDim}, values);
}

void expect_numbered(const TensorView& x, const TensorView& ids, std::int64_t first_head, const std::string& text) {
  ASSERT_EQ(ids.size(0), x.size(0)) << text;
  for (std::int64_t row = 0; row < x.size(0); ++row) {
    for (std::int64_t head = 0; head < x.size(1); ++head) {
      ASSERT_EQ(x.data<float>()[row * x.stride(0) + head * x.stride(1)],
                number_of(ids.data<std::int32_t>() + 2 * row, first_head + head))
          << text << ": row " << row << " head " << head;
    }
  }
}

void expect_parts(nn::AttentionExchange& exchange, const plan::Layout& layout, comm::Mesh& mesh,
                  const AttentionMask& mask, const std::string& text) {
  const auto device = rank_device();
  TestContext ctx(*device, DType::f32);
  const testing::ExchangeBatch batch(layout, mesh.coordinate(), ctx);
  const std::int64_t rows = batch.bounds().rows;
  AttentionTensors tensors{.q = numbered(ctx, kHeads), .k = numbered(ctx, kKvHeads), .v = numbered(ctx, kKvHeads)};
  tensors.o = ctx.make(DType::f32, tensors.q.shape());
  tensors.lse = ctx.make(DType::f32, {kHeads, rows});
  const auto call = exchange.forward(ctx, mask, tensors);
  std::int64_t first_heads = 0;  // query heads of the first parts of some queries
  for (int p = 0; p < call->parts(); ++p) {
    const AttentionPart part = call->wait(p);
    ctx.finish();
    const std::int64_t group = part.tensors.q.size(1) / part.tensors.k.size(1);
    expect_numbered(part.tensors.q, part.query_ids, part.first_head, text + ": queries");
    expect_numbered(part.tensors.k, part.key_ids, part.first_head / group, text + ": keys");
    expect_numbered(part.tensors.v, part.key_ids, part.first_head / group, text + ": values");
    if (part.first) first_heads += part.tensors.q.size(1) * part.tensors.q.size(0);
    call->computed(p);
  }
  call->finish_queries();
  ctx.finish();
  EXPECT_EQ(first_heads, kHeads * rows) << text;
}

TEST(ContextParts, NameTheirHeadsAndRows) {
  const int world = the_world->size();
  if (world == 1 || world > 4) return;
  // Layers of three masks; dropout of probabilities needs the row ids of all ranks.
  models::ModelDescription description = testing::toy_description(true, 3);
  description.blocks[1].attention.causal = false;
  description.blocks[2].attention.window = 9;
  for (models::BlockDescription& block : description.blocks) block.attention.dropout = 0.1;
  const models::Model model(description);
  for (int degree = 1; degree <= world; degree *= 2) {
    for (const Split split : {Split::zigzag, Split::by_work}) {
      plan::LayoutChoices choices = testing::toy_layout({.context = world, .context_heads = degree}, model);
      choices.batch_sizes.split = split;
      if (split == Split::by_work) choices.batch_sizes.chunks_per_rank = degree < world ? 4 : 1;
      choices.batch_sizes.source_segments = true;
      const plan::Layout layout = plan::derive(choices, model);
      const auto mesh = rank_mesh(layout.mesh);
      std::vector<std::shared_ptr<nn::AttentionExchange>> exchanges;
      if (degree == world) {
        exchanges.push_back(std::make_shared<nn::AttentionExchange>());
      } else {
        exchanges.push_back(std::make_shared<testing::RingExchange>(mesh->context_ring()));
        exchanges.push_back(std::make_shared<parallel::AllGatherExchange>(mesh->context_ring(), 2));
      }
      for (std::size_t i = 0; i < exchanges.size(); ++i) {
        for (const auto& [mask, share] : layout.batch.masks) {
          const std::string text = cat("exchange ", i, ", heads over ", degree, ", split ", static_cast<int>(split),
                                       mask.causal ? "" : ", not causal", mask.window > 0 ? ", window" : "");
          if (degree == 1) {
            expect_parts(*exchanges[i], layout, *mesh, mask, text);
          } else {
            testing::HeadExchange heads(mesh->context_heads(), exchanges[i]);
            expect_parts(heads, layout, *mesh, mask, text);
          }
        }
      }
    }
  }
}

}  // namespace context_parts_test
}  // namespace hawser
