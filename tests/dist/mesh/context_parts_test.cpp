// What the parts of attention exchanges say about their tensors: the heads, and the rows of the sequences.
#include "support/exchange_batch.h"
#include "toy_training.h"

namespace hawser {
namespace context_parts_test {

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
                  const AttentionMask& mask) {
  const auto device = rank_device();
  TestContext ctx(*device, DType::f32);
  const testing::ExchangeBatch batch(layout, mesh.coordinate(), ctx);
  const std::int64_t rows = batch.bounds().rows;
  AttentionTensors tensors{.q = numbered(ctx, kHeads), .k = numbered(ctx, kKvHeads), .v = numbered(ctx, kKvHeads)};
  tensors.o = ctx.make(DType::f32, tensors.q.shape());
  tensors.lse = ctx.make(DType::f32, {kHeads, rows});
  const auto call = exchange.begin(ctx, mask, tensors);
  std::int64_t first_heads = 0;  // query heads of the first parts of some queries
  for (int p = 0; p < call->parts(); ++p) {
    const AttentionPart part = call->wait(p);
    ctx.finish();
    const std::int64_t group = part.tensors.q.size(1) / part.tensors.k.size(1);
    expect_numbered(part.tensors.q, part.query_ids, part.first_head, "queries");
    expect_numbered(part.tensors.k, part.key_ids, part.first_head / group, "keys");
    expect_numbered(part.tensors.v, part.key_ids, part.first_head / group, "values");
    if (part.first) first_heads += part.tensors.q.size(1) * part.tensors.q.size(0);
    call->computed(p);
  }
  call->finish_queries();
  ctx.finish();
  EXPECT_EQ(first_heads, kHeads * rows);
}

struct PartsCase {
  testing::MeshCase on;
  bool ring = false;  // keys move from rank to rank; else they are gathered

  std::string name() const { return testing::joined(on.name(), testing::name_if(ring, "ring")); }
  friend void PrintTo(const PartsCase& c, std::ostream* out) { *out << c.name(); }
};

using ContextParts = testing::CaseTest<PartsCase>;

TEST_P(ContextParts, NameTheirHeadsAndRows) {
  const auto& [c, ring] = GetParam();
  // Layers of three masks; dropout of probabilities needs the row ids of all ranks.
  models::ModelDescription description = testing::toy_description(true, 3);
  description.blocks[1].attention.causal = false;
  description.blocks[2].attention.window = 9;
  for (models::BlockDescription& block : description.blocks) block.attention.dropout = 0.1;
  const models::Model model(description);
  plan::LayoutChoices choices = testing::toy_layout(c, model);
  choices.batch_sizes.together = 1;
  choices.ring_attention = ring;
  choices.batch_sizes.source_segments = ring;
  choices.head_groups = 2;
  const plan::Layout layout = plan::derive(choices, model);
  const auto mesh = rank_mesh(layout.mesh);
  for (const auto& [mask, share] : layout.batch.masks) {
    SCOPED_TRACE(testing::name_of(mask));
    expect_parts(*plan::make_seams(layout, *mesh).attention, layout, *mesh, mask);
  }
}

std::vector<PartsCase> exchanges() {
  std::vector<PartsCase> out;
  const int world = the_world->size();
  if (world == 1 || world > 4) return out;
  for (int heads = 1; heads <= world; heads *= 2) {
    for (const bool by_work : {false, true}) {
      const testing::MeshCase on{.mesh = {.context = world, .context_heads = heads}, .by_work = by_work};
      if (heads == 1 || heads == world) out.push_back({on, false});
      if (heads < world) out.push_back({on, true});
    }
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Exchanges, ContextParts, ::testing::ValuesIn(exchanges()), testing::CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ContextParts);

}  // namespace context_parts_test
}  // namespace hawser
