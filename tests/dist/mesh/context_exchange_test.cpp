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

using testing::CaseName;
using testing::CaseTest;
using testing::MeshCase;

enum class Exchange { all_gather, ring };  // between ranks with different rows of the same heads

struct ContextCase {
  MeshCase on;
  Exchange exchange = Exchange::ring;
  bool saves = false;  // the exchange saves what it has moved
  double softcap = 0;  // of both blocks; with AttentionMask::distances the second one has ALiBi
  double dropout = 0;  // of both blocks

  int ring() const { return on.mesh.context / on.mesh.context_heads; }
  bool grouped() const { return exchange == Exchange::all_gather && on.mesh.context_heads == 1; }
  std::string name() const {
    return testing::joined(exchange == Exchange::ring ? "ring" : "all_gather", on.name(),
                           testing::name_if(saves, "saves"), testing::name_if(softcap > 0, "softcap"),
                           testing::name_if(dropout > 0, "dropout"));
  }
  friend void PrintTo(const ContextCase& c, std::ostream* out) { *out << c.name(); }
};

// Enough key-value heads that each rank of the largest group of heads has some; `grouped`: each is of two query heads.
models::ModelDescription description(const AttentionMask& mask, double softcap = 0, double dropout = 0,
                                     bool grouped = false) {
  models::ModelDescription d = testing::toy_description();
  for (models::BlockDescription& block : d.blocks) {
    block.attention.kv_heads = grouped ? 2 : 4;
    if (softcap > 0) block.attention.softcap = softcap;
    block.attention.dropout = dropout;
  }
  d.blocks[1].attention.causal = mask.causal;
  d.blocks[1].attention.window = mask.window;
  d.blocks[1].attention.alibi = mask.distances;
  return d;
}

plan::LayoutChoices layout_of(const ContextCase& c, const models::Model& model) {
  plan::LayoutChoices layout = testing::toy_layout(c.on, model);
  layout.batch_sizes.together = 1;
  layout.batch_sizes.source_segments = c.exchange == Exchange::ring;
  layout.attention_exchange = [c](comm::Mesh& groups) {
    auto exchange = std::make_shared<nn::AttentionExchange>();
    if (c.ring() > 1 && c.exchange == Exchange::all_gather) {
      exchange = std::make_shared<parallel::AllGatherExchange>(groups.context_ring(), 2);
    } else if (c.ring() > 1) {
      exchange = std::make_shared<testing::RingExchange>(groups.context_ring(), c.saves);
    }
    if (c.on.mesh.context_heads > 1) {
      exchange = std::make_shared<testing::HeadExchange>(groups.context_heads(), exchange, c.saves);
    }
    return exchange;
  };
  return layout;
}

// One micro-batch after another, no recompute.
plan::LayoutChoices layout_of_one_rank(const ContextCase& c, const models::Model& model) {
  plan::LayoutChoices layout = testing::toy_layout({.packed = c.on.packed}, model);
  layout.batch_sizes.source_segments = true;
  return layout;
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

using ContextTraining = CaseTest<ContextCase>;

TEST_P(ContextTraining, IsThatOfOneRank) {
  const ContextCase& c = GetParam();
  const models::Model model(description(c.on.mask, 0, c.dropout, c.grouped()));
  const plan::LayoutChoices layout = layout_of(c, model);
  const testing::Trained trained = testing::train(model, layout);
  testing::expect_training_of_one_rank(model, layout_of_one_rank(c, model), 2LL * layout.data_ranks() * 2, trained);
}

std::vector<ContextCase> trainings() {
  std::vector<ContextCase> out;
  for (const comm::MeshSizes& mesh : meshes()) {
    out.push_back({{.mesh = mesh, .policy = kFull}});
    out.push_back({{.mesh = mesh, .policy = kDelayed, .in_flight = 2, .mask = {.window = 9}}});
    out.push_back({{.mesh = mesh, .mask = {.window = 3}}});
    out.push_back({{.mesh = mesh, .policy = kFull, .mask = {.causal = false}}});
    out.push_back({{.mesh = mesh, .mask = {.causal = false, .window = 9}}});
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Meshes, ContextTraining, ::testing::ValuesIn(trainings()), CaseName());

// Each pair of rows of a sequence draws one number in each head of the model, in gathered keys, in keys that move by
// chunk, and on the ranks of some heads, in forward, recompute and backward. It is long on eight ranks.
std::vector<ContextCase> dropout() {
  std::vector<ContextCase> out;
  if (the_world->size() > 4) return out;
  for (const comm::MeshSizes& mesh : meshes()) {
    ContextCase c{.on = {.mesh = mesh, .policy = kFull}, .exchange = Exchange::all_gather, .dropout = 0.3};
    out.push_back(c);
    c.exchange = Exchange::ring;
    c.on.by_work = true;
    out.push_back(c);
    c.on.policy = kDelayed;
    c.on.mask = {.window = 9};
    out.push_back(c);
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Dropout, ContextTraining, ::testing::ValuesIn(dropout()), CaseName());

// What has moved in forward, or in recompute, does not move again; also if it is offloaded to host memory. It is long
// on eight ranks.
std::vector<ContextCase> offloaded() {
  std::vector<ContextCase> out;
  if (the_world->size() > 4) return out;
  for (const comm::MeshSizes& mesh : meshes()) {
    out.push_back({.on = {.mesh = mesh, .policy = {.offload = true}, .mask = {.causal = false}}, .saves = true});
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Offloaded, ContextTraining, ::testing::ValuesIn(offloaded()), CaseName());

using ContextGradients = CaseTest<ContextCase>;

void expect_gradients_of_one_rank(const ContextCase& c) {
  const models::Model model(description(c.on.mask, c.softcap, 0, c.grouped()));
  const plan::LayoutChoices layout = layout_of(c, model);
  const std::int64_t batch_size = c.on.batch_size();
  const auto mesh = rank_mesh(layout.mesh);
  const testing::Outcome ours = testing::run(model, layout, *mesh, batch_size, c.on.random_delay_s);
  static std::map<std::tuple<std::int64_t, bool, AttentionMask, double, bool>, testing::Outcome> references;
  testing::Outcome& one = references[{batch_size, c.on.packed, c.on.mask, c.softcap, c.grouped()}];
  if (one.gradients.empty()) {
    one = testing::on_one_rank(
        [&] { return testing::run(model, layout_of_one_rank(c, model), *comm::make_self_mesh(), batch_size, 0); });
  }
  EXPECT_NEAR(ours.loss, one.loss, 1e-5 * one.loss);
  // With window 1, the exact gradients of that block's q and k are zero.
  testing::expect_gradients(c.on.mesh, ours, one, c.on.mask.window == 1 ? 2e-4 : 1e-5);
}

TEST_P(ContextGradients, AreThoseOfOneRank) {
  expect_gradients_of_one_rank(GetParam());
}

std::vector<ContextCase> causal() {
  std::vector<ContextCase> out;
  for (const comm::MeshSizes& mesh : meshes()) {
    out.push_back({{.mesh = mesh, .mask = {.window = 3}, .random_delay_s = 0.0005}});
    ContextCase c{{.mesh = mesh,
                   .policy = {Checkpointing::qkv, true},
                   .micro_batches = 3,
                   .in_flight = 2,
                   .missing = 1,
                   .by_work = true,
                   .mask = {.window = 9}}};
    out.push_back(c);
    c.on.packed = false;
    c.on.mask = {};
    out.push_back(c);
  }
  if (the_world->size() == 4) {
    out.push_back({{.mesh = {.context = 2, .shard = 2}, .policy = kFull}});
    out.push_back({{.mesh = {.context = 2, .shard = 2, .context_heads = 2}, .policy = kFull}});
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Causal, ContextGradients, ::testing::ValuesIn(causal()), CaseName());

// The production exchange finds the tables that it needs in the ring, too.
std::vector<ContextCase> all_gather() {
  std::vector<ContextCase> out;
  for (const comm::MeshSizes& mesh : meshes()) {
    out.push_back({.on = {.mesh = mesh, .mask = {.window = 9}}, .exchange = Exchange::all_gather});
    out.push_back({.on = {.mesh = mesh, .policy = kFull, .packed = false}, .exchange = Exchange::all_gather});
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(AllGather, ContextGradients, ::testing::ValuesIn(all_gather()), CaseName());

std::vector<ContextCase> not_causal() {
  std::vector<ContextCase> out;
  for (const comm::MeshSizes& mesh : meshes()) {
    for (const Exchange exchange : {Exchange::all_gather, Exchange::ring}) {
      out.push_back({.on = {.mesh = mesh, .policy = kFull, .mask = {.causal = false}}, .exchange = exchange});
    }
    out.push_back({{.mesh = mesh,
                    .policy = kDelayed,
                    .micro_batches = 3,
                    .in_flight = 2,
                    .missing = 1,
                    .mask = {.causal = false, .window = 9}}});
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(NotCausal, ContextGradients, ::testing::ValuesIn(not_causal()), CaseName());

// Slopes are those of the heads that a rank computes, and distances those of the sequence: in gathered keys, in keys
// that move by chunk, with and without a window. It is long on eight ranks.
std::vector<ContextCase> alibi() {
  std::vector<ContextCase> out;
  if (the_world->size() > 4) return out;
  for (const comm::MeshSizes& mesh : meshes()) {
    for (const Exchange exchange : {Exchange::all_gather, Exchange::ring}) {
      for (const AttentionMask& mask : {AttentionMask{.distances = true}, AttentionMask{.window = 9, .distances = true},
                                        AttentionMask{.causal = false, .distances = true}}) {
        out.push_back({.on = {.mesh = mesh, .policy = kFull, .by_work = true, .mask = mask},
                       .exchange = exchange,
                       .softcap = 0.5});
      }
    }
    out.push_back({.on = {.mesh = mesh, .packed = false, .mask = {.distances = true}}, .softcap = 0.5});
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Alibi, ContextGradients, ::testing::ValuesIn(alibi()), CaseName());

// What has moved in forward, or in recompute, does not move again. It is long on eight ranks.
std::vector<ContextCase> saved() {
  std::vector<ContextCase> out;
  if (the_world->size() > 4) return out;
  for (const comm::MeshSizes& mesh : meshes()) {
    for (const Checkpointing checkpointing : kCheckpointing) {
      out.push_back({.on = {.mesh = mesh,
                            .policy = {.checkpointing = checkpointing,
                                       .delay_weight_gradients = checkpointing == Checkpointing::qkv},
                            .micro_batches = 3,
                            .in_flight = 2,
                            .missing = 1,
                            .mask = {.window = 9},
                            .random_delay_s = 0.0005},
                     .saves = true});
    }
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Saved, ContextGradients, ::testing::ValuesIn(saved()), CaseName());

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

using ContextPlans = CaseTest<ContextCase>;

// The plan has what an exchange saves in buffers of its size, and the search over policies counts those that live from
// forward to backward.
TEST_P(ContextPlans, HaveWhatExchangesSave) {
  ContextCase c = GetParam();
  const int ranks = c.on.mesh.context;
  const Checkpointing checkpointing = c.on.policy.checkpointing;
  const models::Model model(description({}));
  const std::int64_t attention = model.attention_layers(), micro_batches = 2;
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
  const auto mesh = rank_mesh(c.on.mesh);
  const auto device = rank_device();
  const engine::Session session(model, plan::derive(layout(true), model), *device, *mesh, {step::Purpose::train});
  const plan::RankPlan plan =
      plan::plan_rank(model, plan::derive(layout(true), model), step::Purpose::train, the_world->rank().value(), true);
  EXPECT_EQ(session.planned_bytes(), plan.bytes());
}

std::vector<ContextCase> every_checkpointing() {
  std::vector<ContextCase> out;
  const int ranks = std::min(the_world->size(), 4);
  if (ranks == 1) return out;
  for (const Checkpointing checkpointing : kCheckpointing) {
    out.push_back(
        {{.mesh = {.context = ranks, .shard = the_world->size() / ranks}, .policy = {.checkpointing = checkpointing}}});
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(EveryCheckpointing, ContextPlans, ::testing::ValuesIn(every_checkpointing()), CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ContextPlans);  // one rank exchanges nothing

TEST(ContextExchange, HeadsOverRanksNeedASeamOfTheirOwn) {
  const models::Model model(testing::toy_description());
  plan::LayoutChoices layout = testing::toy_layout({.mesh = {.context = 4, .context_heads = 2}}, model);
  const auto mesh = comm::make_meta_mesh(layout.mesh, Rank(0));
  EXPECT_THROW(plan::make_seams(plan::derive(layout, model), *mesh), InternalError);
  layout.attention_exchange = [](comm::Mesh&) { return std::make_shared<nn::AttentionExchange>(); };
  plan::make_seams(plan::derive(layout, model), *mesh);
  layout.batch_sizes.context_heads = 1;
  EXPECT_THROW(plan::make_seams(plan::derive(layout, model), *mesh), InternalError);
}

using FullContextGradients = CaseTest<ContextCase>;

TEST_P(FullContextGradients, AreThoseOfOneRank) {
  expect_gradients_of_one_rank(GetParam());
}

// Masks whose windows end in a chunk, at its end, after it, and after the sequence.
std::vector<AttentionMask> masks(const comm::MeshSizes& mesh) {
  const int ring = mesh.context / mesh.context_heads;
  const std::int64_t chunk = ceil_div(testing::kToyLength, std::int64_t{ring == 1 ? 1 : 2} * ring);
  std::vector<AttentionMask> out = {{.causal = false}, {.causal = false, .window = 7}};
  for (const std::int64_t window :
       {std::int64_t{0}, std::int64_t{1}, std::int64_t{7}, chunk, chunk + 1, testing::kToyLength + 1}) {
    out.push_back({.window = window});
  }
  return out;
}

// Options that are not those of the masks and policies: each combination of them comes with several of these.
ContextCase with_options(ContextCase c, std::size_t policy, std::size_t mask) {
  c.on.micro_batches = (policy + mask) % 2 == 0 ? 3 : 1;
  c.on.missing = c.on.micro_batches > 1 ? 1 : 0;
  c.on.in_flight = c.on.micro_batches > 1 && c.on.policy.delay_weight_gradients ? 2 : 1;
  c.saves = mask % 2 == 0;
  c.on.packed = (policy + 2 * mask) % 3 != 0;
  c.on.random_delay_s = (policy + mask) % 5 == 0 ? 0.0005 : 0;
  c.on.by_work = (policy + mask) % 3 != 1;
  return c;
}

// Every split of every number of context ranks, with every mask and policy; over eight ranks, which share few cores,
// with some policies.
std::vector<ContextCase> every_mask_and_policy() {
  std::vector<ContextCase> out;
  std::vector<nn::SavePolicy> policies = nn::testing::all_policies();
  if (the_world->size() == 8) policies = {{}, {Checkpointing::qkv, true}, kFull};
  for (int context = 2; context <= the_world->size(); context *= 2) {
    for (const comm::MeshSizes& mesh : splits_of(context)) {
      const std::vector<AttentionMask> all = masks(mesh);
      for (std::size_t p = 0; p < policies.size(); ++p) {
        for (std::size_t m = 0; m < all.size(); ++m) {
          for (const Exchange exchange : {Exchange::all_gather, Exchange::ring}) {
            if (mesh.context == mesh.context_heads && exchange == Exchange::all_gather) continue;
            const ContextCase c{.on = {.mesh = mesh, .policy = policies[p], .mask = all[m]}, .exchange = exchange};
            out.push_back(with_options(c, p, m));
          }
        }
      }
    }
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(EveryMaskAndPolicy, FullContextGradients, ::testing::ValuesIn(every_mask_and_policy()),
                         CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FullContextGradients);  // one rank has no splits

}  // namespace context_exchange_test
}  // namespace hawser
