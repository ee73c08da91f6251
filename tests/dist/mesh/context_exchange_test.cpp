// Context parallelism that moves queries and outputs, or keys from rank to rank, through plan, checker, executor and
// session.
#include "nn/testing/context.h"
#include "support/context_exchanges.h"
#include "toy_training.h"

namespace hawser {
namespace {

enum class Exchange { heads, ring };

// Four key-value heads, so that up to four ranks have some each.
models::ModelDescription description(std::int64_t window) {
  models::ModelDescription d = testing::toy_description();
  for (models::BlockDescription& block : d.blocks) block.attention.kv_heads = 4;
  d.blocks[1].attention.window = window;
  return d;
}

void expect_like_one_rank(Exchange exchange, const comm::MeshSizes& mesh, const nn::SavePolicy& policy,
                          std::int64_t window = 0) {
  const std::string text = cat(exchange == Exchange::heads ? "heads" : "ring", ", context ", mesh.context, " shard ",
                               mesh.shard, ", ", nn::testing::text(policy), ", window ", window);
  const models::Model model(description(window));
  plan::Layout layout = testing::toy_layout(mesh, model);
  plan::set_windows(layout.batch, model);
  layout.batch.document_segments = exchange == Exchange::heads;
  layout.batch.source_segments = exchange == Exchange::ring;
  plan::set_bounds(layout);
  layout.policies.assign(layout.policies.size(), policy);
  if (policy.delay_weight_gradients) layout.in_flight = 2;
  layout.replace_seams = [&](nn::Seams& seams, comm::Mesh& groups) {
    if (exchange == Exchange::heads) {
      seams.attention = std::make_shared<testing::HeadExchange>(groups.context());
    } else {
      seams.attention = std::make_shared<testing::RingExchange>(groups.context());
    }
  };
  const testing::Trained cut = testing::train(model, layout);
  plan::Layout alone = testing::toy_layout({}, model);
  plan::set_windows(alone.batch, model);
  plan::set_bounds(alone);
  testing::expect_one_ranks_training(model, alone, 2LL * layout.data_ranks() * 2, cut, text);
}

TEST(ContextExchange, TrainsLikeOneRank) {
  const int world = the_world->size();
  if (world < 2 || world > 4) GTEST_SKIP() << "two and four ranks";
  const nn::SavePolicy full{.checkpointing = Checkpointing::full}, delayed{.delay_weight_gradients = true};
  for (const Exchange exchange : {Exchange::heads, Exchange::ring}) {
    expect_like_one_rank(exchange, {.context = world}, full);
    expect_like_one_rank(exchange, {.context = world}, delayed);
    for (const std::int64_t window : {3, 9}) expect_like_one_rank(exchange, {.context = world}, {}, window);
    if (world == 4) expect_like_one_rank(exchange, {.context = 2, .shard = 2}, full);
  }
}

}  // namespace
}  // namespace hawser
