// Context parallelism that gathers keys, or moves queries and outputs, or keys from rank to rank, through plan,
// checker, executor and session.
#include "nn/testing/context.h"
#include "support/context_exchanges.h"
#include "toy_training.h"

namespace hawser {
namespace {

enum class Exchange { all_gather, heads, ring };

// Four key-value heads, so that up to four ranks have some each.
models::ModelDescription description(const AttentionMask& mask) {
  models::ModelDescription d = testing::toy_description();
  for (models::BlockDescription& block : d.blocks) block.attention.kv_heads = 4;
  d.blocks[1].attention.causal = mask.causal;
  d.blocks[1].attention.window = mask.window;
  return d;
}

void expect_like_one_rank(Exchange exchange, const comm::MeshSizes& mesh, const nn::SavePolicy& policy,
                          const AttentionMask& mask = {}) {
  constexpr const char* kNames[] = {"all-gather", "heads", "ring"};
  const std::string text =
      cat(kNames[static_cast<int>(exchange)], ", context ", mesh.context, " shard ", mesh.shard, ", ",
          nn::testing::text(policy), ", window ", mask.window, mask.causal ? "" : ", not causal");
  const models::Model model(description(mask));
  plan::Layout layout = testing::toy_layout(mesh, model);
  plan::set_masks(layout.batch, model);
  layout.batch.document_segments = exchange == Exchange::heads;
  layout.batch.source_segments = exchange == Exchange::ring;
  plan::set_bounds(layout);
  layout.policies.assign(layout.policies.size(), policy);
  if (policy.delay_weight_gradients) layout.in_flight = 2;
  // In the batch of eight ranks, one element of a gradient cancels to rounding noise. AdamW divides by its size: after
  // three steps even all-gather's weights are 8.6e-6 from one rank's. A larger epsilon shows the gradients themselves.
  const bool noisy = the_world->size() == 8;
  if (noisy) layout.optimizer = optim::make_adamw({.epsilon = 1e-4});
  layout.replace_seams = [&](nn::Seams& seams, comm::Mesh& groups) {
    if (exchange == Exchange::heads) {
      seams.attention = std::make_shared<testing::HeadExchange>(groups.context());
    } else if (exchange == Exchange::ring) {
      seams.attention = std::make_shared<testing::RingExchange>(groups.context());
    }
  };
  const testing::Trained cut = testing::train(model, layout);
  plan::Layout alone = testing::toy_layout({}, model);
  plan::set_masks(alone.batch, model);
  plan::set_bounds(alone);
  alone.optimizer = layout.optimizer;
  const testing::Tensors after =
      testing::expect_one_ranks_training(model, alone, 2LL * layout.data_ranks() * 2, cut, text);
  if (noisy) {
    EXPECT_LT(testing::difference(cut.after, after, "model"), 1e-6) << text;
  }
}

TEST(ContextExchange, TrainsLikeOneRank) {
  const int world = the_world->size();
  const comm::MeshSizes mesh{.context = std::min(world, 4), .shard = std::max(world / 4, 1)};
  const nn::SavePolicy full{.checkpointing = Checkpointing::full}, delayed{.delay_weight_gradients = true};
  for (const Exchange exchange : {Exchange::heads, Exchange::ring}) {
    if (world == 1 && exchange == Exchange::heads) continue;  // one rank has all heads, and no gather_index
    expect_like_one_rank(exchange, mesh, full);
    expect_like_one_rank(exchange, mesh, delayed);
    for (const std::int64_t window : {3, 9}) expect_like_one_rank(exchange, mesh, {}, {.window = window});
    if (world == 4) expect_like_one_rank(exchange, {.context = 2, .shard = 2}, full);
  }
}

TEST(ContextExchange, TrainsLikeOneRankWithoutACausalMask) {
  const int world = the_world->size();
  const comm::MeshSizes mesh{.context = std::min(world, 4), .shard = std::max(world / 4, 1)};
  const nn::SavePolicy full{.checkpointing = Checkpointing::full};
  for (const Exchange exchange : {Exchange::all_gather, Exchange::heads, Exchange::ring}) {
    if (world == 1 && exchange == Exchange::heads) continue;
    expect_like_one_rank(exchange, mesh, full, {.causal = false});
    expect_like_one_rank(exchange, mesh, {}, {.causal = false, .window = 9});
  }
}

}  // namespace
}  // namespace hawser
