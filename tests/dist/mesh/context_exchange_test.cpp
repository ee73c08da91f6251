// Context parallelism that gathers keys, moves keys from rank to rank, or moves queries and outputs to the ranks of
// their heads, alone and in two dimensions, through plan, checker, executor and session.
#include <map>
#include <tuple>

#include "nn/testing/context.h"
#include "outcome.h"
#include "parallel/context/all_gather_exchange.h"
#include "plan/policy_candidates.h"
#include "support/context_exchanges.h"
#include "toy_training.h"

namespace hawser {
namespace context_exchange_test {

using Split = batches::SequenceSplit;

enum class Exchange { all_gather, ring };  // between ranks with different rows of the same heads

struct ContextCase {
  comm::MeshSizes mesh;
  Exchange exchange = Exchange::ring;
  nn::SavePolicy policy = {};
  AttentionMask mask = {};  // of the second block's attention
  Split split = Split::zigzag;
  bool packed = true;
  int accumulation = 1;
  int in_flight = 1;
  bool saves = false;  // the exchange saves what it has moved
  double random_delay_s = 0;
  double softcap = 0;  // of both blocks; with AttentionMask::distances the second one has ALiBi
  double dropout = 0;  // of both blocks

  int ring() const { return mesh.context / mesh.context_heads; }
  std::int64_t missing() const { return accumulation > 1 ? 1 : 0; }  // sequences of a divisible global batch
  std::string text() const {
    constexpr const char* kSplits[] = {"", ", by work"};
    return cat(exchange == Exchange::ring ? "ring" : "all-gather", ", context ", mesh.context, " heads ",
               mesh.context_heads, " shard ", mesh.shard, ", ", nn::testing::text(policy), ", window ", mask.window,
               mask.causal ? "" : ", not causal", mask.distances ? ", ALiBi" : "", dropout > 0 ? ", dropout" : "",
               kSplits[static_cast<int>(split)], packed ? "" : ", unpacked", ", accumulation ", accumulation,
               ", in flight ", in_flight, saves ? ", saves" : "");
  }
};

// Enough key-value heads that each rank of the largest group of heads has some.
models::ModelDescription description(const AttentionMask& mask, double softcap = 0, double dropout = 0) {
  models::ModelDescription d = testing::toy_description();
  for (models::BlockDescription& block : d.blocks) {
    block.attention.kv_heads = 4;
    if (softcap > 0) block.attention.softcap = softcap;
    block.attention.dropout = dropout;
  }
  d.blocks[1].attention.causal = mask.causal;
  d.blocks[1].attention.window = mask.window;
  d.blocks[1].attention.alibi = mask.distances;
  return d;
}

void set_batch(const ContextCase& c, plan::LayoutChoices& layout) {
  layout.batch_sizes = testing::toy_batch(c.mesh.context, c.packed, c.mesh.context_heads);
  layout.batch_sizes.split = c.split;
  if (c.split == Split::by_work) layout.batch_sizes.chunks_per_rank = c.ring() > 1 ? 4 : 1;
  layout.batch_sizes.source_segments = c.exchange == Exchange::ring;
}

plan::LayoutChoices layout_of(const ContextCase& c, const models::Model& model) {
  plan::LayoutChoices layout = testing::toy_layout(c.mesh, model);
  set_batch(c, layout);
  layout.policies.assign(layout.policies.size(), c.policy);
  layout.schedule.group = c.in_flight;
  layout.replace_seams = [c](nn::Seams& seams, comm::Mesh& groups) {
    seams.attention = std::make_shared<nn::AttentionExchange>();
    if (c.ring() > 1 && c.exchange == Exchange::all_gather) {
      seams.attention = std::make_shared<parallel::AllGatherExchange>(groups.context_ring(), 2);
    } else if (c.ring() > 1) {
      seams.attention = std::make_shared<testing::RingExchange>(groups.context_ring(), c.saves);
    }
    if (c.mesh.context_heads > 1) {
      seams.attention = std::make_shared<testing::HeadExchange>(groups.context_heads(), seams.attention, c.saves);
    }
  };
  return layout;
}

// One rank, one micro-batch after another, no recompute.
plan::LayoutChoices alone(const ContextCase& c, const models::Model& model) {
  plan::LayoutChoices layout = testing::toy_layout({}, model);
  set_batch({.mask = c.mask, .packed = c.packed}, layout);
  return layout;
}

void expect_one_ranks_gradients(const ContextCase& c) {
  SCOPED_TRACE(c.text());
  const models::Model model(description(c.mask, c.softcap));
  const plan::LayoutChoices layout = layout_of(c, model);
  const std::int64_t batch_size = 2LL * layout.data_ranks() * c.accumulation - c.missing();
  const auto mesh = rank_mesh(layout.mesh);
  const testing::Outcome ours = testing::run(model, layout, *mesh, batch_size, c.random_delay_s);
  static std::map<std::tuple<std::int64_t, bool, AttentionMask, double>, testing::Outcome> references;
  testing::Outcome& one = references[{batch_size, c.packed, c.mask, c.softcap}];
  if (one.gradients.empty()) {
    one = testing::on_one_rank(
        [&] { return testing::run(model, alone(c, model), *comm::make_self_mesh(), batch_size, 0); });
  }
  EXPECT_NEAR(ours.loss, one.loss, 1e-5 * one.loss);
  // With window 1, the exact gradients of that block's q and k are zero.
  testing::compare_shards({}, ours, one, c.mask.window == 1 ? 2e-4 : 1e-5);
}

void expect_one_ranks_training(const ContextCase& c) {
  const models::Model model(description(c.mask, 0, c.dropout));
  const plan::LayoutChoices layout = layout_of(c, model);
  const testing::Trained cut = testing::train(model, layout);
  testing::expect_one_ranks_training(model, alone(c, model), 2LL * layout.data_ranks() * 2, cut, c.text());
}

// All splits of `context` ranks into ring and heads; the other ranks are shards.
std::vector<comm::MeshSizes> splits_of(int context) {
  std::vector<comm::MeshSizes> out;
  for (int heads = 1; heads <= std::min(context, 4); heads *= 2) {
    out.push_back({.context = context, .shard = the_world->size() / context, .context_heads = heads});
  }
  return out;
}

// Of up to four context ranks.
std::vector<comm::MeshSizes> meshes() {
  return splits_of(std::min(the_world->size(), 4));
}

constexpr Checkpointing kCheckpointing[] = {Checkpointing::none, Checkpointing::selective,   Checkpointing::gate_up,
                                            Checkpointing::qkv,  Checkpointing::projections, Checkpointing::full};

const nn::SavePolicy kFull{.checkpointing = Checkpointing::full}, kDelayed{.delay_weight_gradients = true};

TEST(ContextExchange, TrainsLikeOneRank) {
  for (const comm::MeshSizes& mesh : meshes()) {
    expect_one_ranks_training({.mesh = mesh, .policy = kFull});
    expect_one_ranks_training({.mesh = mesh, .policy = kDelayed, .mask = {.window = 9}, .in_flight = 2});
    expect_one_ranks_training({.mesh = mesh, .mask = {.window = 3}});
    expect_one_ranks_training({.mesh = mesh, .policy = kFull, .mask = {.causal = false}});
    expect_one_ranks_training({.mesh = mesh, .mask = {.causal = false, .window = 9}});
  }
}

TEST(ContextExchange, GradientsAreThoseOfOneRank) {
  for (const comm::MeshSizes& mesh : meshes()) {
    expect_one_ranks_gradients({.mesh = mesh, .mask = {.window = 3}, .random_delay_s = 0.0005});
    ContextCase c{.mesh = mesh, .policy = {Checkpointing::qkv, true}, .mask = {.window = 9}};
    c.accumulation = 3;
    c.in_flight = 2;
    c.split = Split::by_work;
    expect_one_ranks_gradients(c);
    c.packed = false;
    c.mask = {};
    expect_one_ranks_gradients(c);
  }
  if (the_world->size() == 4) {
    expect_one_ranks_gradients({.mesh = {.context = 2, .shard = 2}, .policy = kFull});
    expect_one_ranks_gradients({.mesh = {.context = 2, .shard = 2, .context_heads = 2}, .policy = kFull});
  }
}

// The production exchange finds the tables that it needs in the ring, too.
TEST(ContextExchange, GathersTheKeysOfTheRing) {
  for (const comm::MeshSizes& mesh : meshes()) {
    expect_one_ranks_gradients({.mesh = mesh, .exchange = Exchange::all_gather, .mask = {.window = 9}});
    expect_one_ranks_gradients({.mesh = mesh, .exchange = Exchange::all_gather, .policy = kFull, .packed = false});
  }
}

TEST(ContextExchange, GradientsAreThoseOfOneRankWithoutACausalMask) {
  for (const comm::MeshSizes& mesh : meshes()) {
    for (const Exchange exchange : {Exchange::all_gather, Exchange::ring}) {
      expect_one_ranks_gradients({.mesh = mesh, .exchange = exchange, .policy = kFull, .mask = {.causal = false}});
    }
    ContextCase c{.mesh = mesh, .policy = kDelayed, .mask = {.causal = false, .window = 9}};
    c.accumulation = 3;
    c.in_flight = 2;
    expect_one_ranks_gradients(c);
  }
}

// Slopes are those of the heads that a rank computes, and distances those of the sequence: in gathered keys, in keys
// that move by chunk, with and without a window.
TEST(ContextExchange, GradientsWithAlibiAreThoseOfOneRank) {
  if (the_world->size() > 4) GTEST_SKIP() << "long on eight ranks; mesh_2 and mesh_4 run it";
  for (const comm::MeshSizes& mesh : meshes()) {
    for (const Exchange exchange : {Exchange::all_gather, Exchange::ring}) {
      for (const AttentionMask& mask : {AttentionMask{.distances = true}, AttentionMask{.window = 9, .distances = true},
                                        AttentionMask{.causal = false, .distances = true}}) {
        ContextCase c{.mesh = mesh, .exchange = exchange, .policy = kFull, .mask = mask, .softcap = 0.5};
        c.split = Split::by_work;
        expect_one_ranks_gradients(c);
      }
    }
    expect_one_ranks_gradients({.mesh = mesh, .mask = {.distances = true}, .packed = false, .softcap = 0.5});
  }
}

// Each pair of rows of a sequence draws one number in each head of the model, in gathered keys, in keys that move by
// chunk, and on the ranks of some heads, in forward, recompute and backward.
TEST(ContextExchange, DropoutTrainsLikeOneRank) {
  if (the_world->size() > 4) GTEST_SKIP() << "long on eight ranks; mesh_2 and mesh_4 run it";
  constexpr double kDropout = 0.3;
  for (const comm::MeshSizes& mesh : meshes()) {
    ContextCase c{.mesh = mesh, .exchange = Exchange::all_gather, .policy = kFull, .dropout = kDropout};
    expect_one_ranks_training(c);
    c.exchange = Exchange::ring;
    c.split = Split::by_work;
    expect_one_ranks_training(c);
    c.policy = kDelayed;
    c.mask = {.window = 9};
    expect_one_ranks_training(c);
  }
}

// What has moved in forward, or in recompute, does not move again; also if it is offloaded to host memory.
TEST(ContextExchange, SavesTensorsForBackward) {
  if (the_world->size() > 4) GTEST_SKIP() << "long on eight ranks; mesh_2 and mesh_4 run it";
  constexpr nn::SavePolicy kOffload{.offload = true};
  for (const comm::MeshSizes& mesh : meshes()) {
    for (const Checkpointing checkpointing : kCheckpointing) {
      ContextCase c{.mesh = mesh, .policy = {.checkpointing = checkpointing}, .mask = {.window = 9}};
      c.policy.delay_weight_gradients = checkpointing == Checkpointing::qkv;
      c.accumulation = 3;
      c.in_flight = 2;
      c.saves = true;
      c.random_delay_s = 0.0005;
      expect_one_ranks_gradients(c);
    }
    ContextCase c{.mesh = mesh, .policy = kOffload, .mask = {.causal = false}};
    c.saves = true;
    expect_one_ranks_training(c);
  }
}

struct SavedBytes {
  std::map<std::string, std::int64_t> bytes;  // of all micro-batches, by the name of a saved tensor
  int exchanges = 0;                          // with another rank, of keys and of their gradients
};

SavedBytes saved_bytes(const models::Model& model, const plan::LayoutChoices& choices) {
  const plan::Layout layout = plan::derive(choices, model);
  const plan::RankPlan plan = plan::plan_rank(model, layout, step::Purpose::train, the_world->rank().value());
  const auto mesh = comm::make_meta_mesh(layout.mesh, the_world->rank());
  const nn::Seams seams = plan::make_seams(layout, *mesh);
  SavedBytes out;
  for (const auto& [key, buffer] : plan.buffers.index) {
    if (key.role != step::Role::saved) continue;
    const int layer = plan.program.instructions[static_cast<std::size_t>(key.a)].layer;
    const auto specs = nn::saved_specs(model.layer(layer), seams, layout.bounds.row_counts(), layout.compute,
                                       layout.policies[static_cast<std::size_t>(layer)], model.trainable(layer));
    out.bytes[specs[static_cast<std::size_t>(key.b)].name] +=
        plan.buffers.buffers[static_cast<std::size_t>(buffer)].bytes;
  }
  for (const TraceItem& item : plan.trace.items) {
    if (item.kind == TraceItem::Kind::work && item.record.collective.kind == CollectiveKind::exchange) ++out.exchanges;
  }
  return out;
}

// Of one block and micro-batch, as PolicyCandidate::stored_bytes counts them.
std::map<Checkpointing, double> stored_bytes(const models::Model& model, plan::LayoutChoices layout) {
  layout.schedule.group = 1;
  std::map<Checkpointing, double> out;
  for (const plan::PolicyCandidate& candidate : plan::list_policy_candidates(plan::derive(layout, model), model)) {
    out[candidate.policy.checkpointing] = candidate.stored_bytes;
  }
  return out;
}

// The plan has what an exchange saves in buffers of its size, and the search over policies counts those that live from
// forward to backward.
TEST(ContextExchange, PlansWhatExchangesSave) {
  const int ranks = std::min(the_world->size(), 4);
  if (ranks == 1) GTEST_SKIP() << "needs two ranks or more";
  const models::Model model(description({}));
  const std::int64_t attention = model.attention_layers(), micro_batches = 2;
  for (const Checkpointing checkpointing : kCheckpointing) {
    SCOPED_TRACE(static_cast<int>(checkpointing));
    ContextCase c{.mesh = {.context = ranks}, .policy = {.checkpointing = checkpointing}};
    c.mesh.shard = the_world->size() / ranks;
    const auto layout = [&](bool saves) {
      c.saves = saves;
      plan::LayoutChoices out = layout_of(c, model);
      out.micro_batches = static_cast<int>(micro_batches);
      return out;
    };
    const SavedBytes fetched = saved_bytes(model, layout(false)), saved = saved_bytes(model, layout(true));
    EXPECT_FALSE(fetched.bytes.contains("ring_keys"));
    // Keys and values of four heads of the toy model, of every other rank.
    const nn::AttentionConfig& config = *model.attention(0);
    const std::int64_t one = plan::derive(layout(true), model).bounds.rows * 2 * config.kv_heads * config.head_dim * 4;
    const bool full = checkpointing == Checkpointing::full;
    const bool saves = full || (checkpointing != Checkpointing::qkv && checkpointing != Checkpointing::projections);
    const std::int64_t moved = attention * micro_batches * (ranks - 1);
    ASSERT_EQ(saved.bytes.contains("ring_keys"), saves);
    if (saves) {
      EXPECT_EQ(saved.bytes.at("ring_keys"), moved * one);
    }
    // Forward, recompute with full, backward, and gradients.
    EXPECT_EQ(fetched.exchanges, moved * (full ? 4 : 3));
    EXPECT_EQ(saved.exchanges, fetched.exchanges - (saves ? moved : 0));

    const double a_block = saves && !full ? static_cast<double>((ranks - 1) * round_up(one, Device::kAlignment)) : 0;
    const auto with = stored_bytes(model, layout(true)), without = stored_bytes(model, layout(false));
    ASSERT_TRUE(with.contains(checkpointing) && without.contains(checkpointing));
    EXPECT_EQ(with.at(checkpointing) - without.at(checkpointing), a_block);

    // A session, which compares each access with the plan, has the plan's bytes.
    const auto mesh = rank_mesh(c.mesh);
    const auto device = rank_device();
    const engine::Session session(model, plan::derive(layout(true), model), *device, *mesh, {step::Purpose::train});
    const plan::RankPlan plan = plan::plan_rank(model, plan::derive(layout(true), model), step::Purpose::train,
                                                the_world->rank().value(), true);
    EXPECT_EQ(session.planned_bytes(), plan.bytes());
  }
}

TEST(ContextExchange, HeadsOverRanksNeedASeamOfTheirOwn) {
  const models::Model model(testing::toy_description());
  plan::LayoutChoices layout = testing::toy_layout({.context = 4, .context_heads = 2}, model);
  const auto mesh = comm::make_meta_mesh(layout.mesh, Rank(0));
  EXPECT_THROW(plan::make_seams(plan::derive(layout, model), *mesh), InternalError);
  layout.replace_seams = [](nn::Seams&, comm::Mesh&) {};
  plan::make_seams(plan::derive(layout, model), *mesh);
  layout.batch_sizes.context_heads = 1;
  EXPECT_THROW(plan::make_seams(plan::derive(layout, model), *mesh), InternalError);
}

// Masks whose windows end in a chunk, at its end, after it, and after the sequence.
std::vector<AttentionMask> masks(const ContextCase& c) {
  const std::int64_t chunk = ceil_div(testing::kToyLength, std::int64_t{c.ring() == 1 ? 1 : 2} * c.ring());
  std::vector<AttentionMask> out = {{.causal = false}, {.causal = false, .window = 7}};
  for (const std::int64_t window :
       {std::int64_t{0}, std::int64_t{1}, std::int64_t{7}, chunk, chunk + 1, testing::kToyLength + 1}) {
    out.push_back({.window = window});
  }
  return out;
}

// Options that are not those of the masks and policies: each combination of them comes with several of these.
ContextCase with_options(ContextCase c, std::size_t policy, std::size_t mask) {
  c.accumulation = (policy + mask) % 2 == 0 ? 3 : 1;
  c.in_flight = c.accumulation > 1 && c.policy.delay_weight_gradients ? 2 : 1;
  c.saves = mask % 2 == 0;
  c.packed = (policy + 2 * mask) % 3 != 0;
  c.random_delay_s = (policy + mask) % 5 == 0 ? 0.0005 : 0;
  c.split = (policy + mask) % 3 == 1 ? Split::zigzag : Split::by_work;
  return c;
}

// Every split of every number of context ranks, with every mask and policy; over eight ranks, which share few cores,
// with some policies.
TEST(ContextExchange, DISABLED_GradientsAreThoseOfOneRankWithEveryMaskUnderEveryPolicy) {
  std::vector<nn::SavePolicy> policies = nn::testing::all_policies();
  if (the_world->size() == 8) policies = {{}, {Checkpointing::qkv, true}, kFull};
  for (int context = 2; context <= the_world->size(); context *= 2) {
    for (const comm::MeshSizes& mesh : splits_of(context)) {
      const std::vector<AttentionMask> all = masks({.mesh = mesh});
      for (std::size_t p = 0; p < policies.size(); ++p) {
        for (std::size_t m = 0; m < all.size(); ++m) {
          for (const Exchange exchange : {Exchange::all_gather, Exchange::ring}) {
            if (mesh.context == mesh.context_heads && exchange == Exchange::all_gather) continue;
            const ContextCase c{.mesh = mesh, .exchange = exchange, .policy = policies[p], .mask = all[m]};
            expect_one_ranks_gradients(with_options(c, p, m));
          }
        }
      }
    }
  }
}

}  // namespace context_exchange_test
}  // namespace hawser
