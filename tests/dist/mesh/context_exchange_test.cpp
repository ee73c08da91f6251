// Context parallelism that gathers keys, moves keys from rank to rank, or moves queries and outputs to the ranks of
// their heads, alone and as a hybrid, through plan, checker, executor and session.
#include <map>
#include <tuple>

#include "nn/testing/context.h"
#include "outcome.h"
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
  double softcap = 0;    // of both blocks; with AttentionMask::distances the second one has ALiBi
  double dropout = 0;    // of both blocks
  int few_kv_heads = 0;  // 0: four, or two where keys are gathered

  int ring() const { return on.mesh.context / on.mesh.context_heads; }
  int kv_heads() const { return few_kv_heads > 0 ? few_kv_heads : exchange == Exchange::all_gather ? 2 : 4; }
  std::string name() const {
    return testing::joined(exchange == Exchange::ring ? "ring" : "all_gather", on.name(),
                           testing::name_if(softcap > 0, "softcap"), testing::name_if(dropout > 0, "dropout"),
                           few_kv_heads == 0 ? "" : cat("kv", few_kv_heads));
  }
  friend void PrintTo(const ContextCase& c, std::ostream* out) { *out << c.name(); }
};

// Of four query heads.
models::ModelDescription description(const AttentionMask& mask, double softcap = 0, double dropout = 0,
                                     int kv_heads = 4) {
  models::ModelDescription d = testing::toy_description();
  for (models::BlockDescription& block : d.blocks) {
    block.attention.kv_heads = kv_heads;
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
  layout.ring_attention = c.exchange == Exchange::ring;
  layout.batch_sizes.source_segments = layout.ring_attention && c.ring() > 1;
  layout.head_groups = 2;
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

// Of up to four context ranks, with different rows of all heads.
comm::MeshSizes rows_mesh() {
  return splits_of(std::min(the_world->size(), 4)).front();
}

// Of up to four context ranks.
std::vector<comm::MeshSizes> meshes() {
  return splits_of(std::min(the_world->size(), 4));
}

const nn::SavePolicy kFull{.checkpointing = Checkpointing::full}, kDelayed{.delay_weight_gradients = true};

using ContextTraining = CaseTest<ContextCase>;

TEST_P(ContextTraining, IsThatOfOneRank) {
  const ContextCase& c = GetParam();
  const models::Model model(description(c.on.mask, 0, c.dropout, c.kv_heads()));
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
    if (mesh == rows_mesh()) out.push_back(c);
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

using ContextGradients = CaseTest<ContextCase>;

void expect_gradients_of_one_rank(const ContextCase& c) {
  const models::Model model(description(c.on.mask, c.softcap, 0, c.kv_heads()));
  const plan::LayoutChoices layout = layout_of(c, model);
  const std::int64_t batch_size = c.on.batch_size();
  const auto mesh = rank_mesh(layout.mesh);
  const testing::Outcome ours = testing::run(model, layout, *mesh, batch_size, c.on.random_delay_s);
  static std::map<std::tuple<std::int64_t, bool, AttentionMask, double, int>, testing::Outcome> references;
  testing::Outcome& one = references[{batch_size, c.on.packed, c.on.mask, c.softcap, c.kv_heads()}];
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

std::vector<ContextCase> all_gather() {
  std::vector<ContextCase> out;
  const comm::MeshSizes mesh = rows_mesh();
  out.push_back({.on = {.mesh = mesh, .mask = {.window = 9}}, .exchange = Exchange::all_gather});
  out.push_back({.on = {.mesh = mesh, .policy = kFull, .packed = false}, .exchange = Exchange::all_gather});
  return out;
}
INSTANTIATE_TEST_SUITE_P(AllGather, ContextGradients, ::testing::ValuesIn(all_gather()), CaseName());

// Ranks with copies of a key-value head add their gradients.
std::vector<ContextCase> few_keys() {
  std::vector<ContextCase> out;
  for (const comm::MeshSizes& mesh : meshes()) {
    for (const int kv_heads : {1, 2}) {
      ContextCase c{{.mesh = mesh, .policy = kFull, .mask = {.window = 9}}};
      c.few_kv_heads = kv_heads;
      if (mesh.context_heads > kv_heads) out.push_back(c);
    }
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(FewKeys, ContextGradients, ::testing::ValuesIn(few_keys()), CaseName());

std::vector<ContextCase> not_causal() {
  std::vector<ContextCase> out;
  for (const comm::MeshSizes& mesh : meshes()) {
    for (const Exchange exchange : {Exchange::all_gather, Exchange::ring}) {
      if (exchange == Exchange::all_gather && mesh != rows_mesh()) continue;
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
      if (exchange == Exchange::all_gather && mesh != rows_mesh()) continue;
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

TEST(ContextExchange, TheMeshAndTheRowsHaveTheSameGroups) {
  const models::Model model(testing::toy_description());
  plan::LayoutChoices layout = testing::toy_layout({.mesh = {.context = 4, .context_heads = 2}}, model);
  const auto mesh = comm::make_meta_mesh(layout.mesh, Rank(0));
  EXPECT_THROW(plan::make_seams(plan::derive(layout, model), *mesh), InternalError);  // gathered keys between groups
  layout.ring_attention = true;
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
  for (const std::int64_t window : std::set<std::int64_t>{0, 1, 7, chunk, chunk + 1, testing::kToyLength + 1}) {
    out.push_back({.window = window});
  }
  return out;
}

// Options that are not those of the masks and policies: each combination of them comes with several of these.
ContextCase with_options(ContextCase c, std::size_t policy, std::size_t mask) {
  c.on.micro_batches = (policy + mask) % 2 == 0 ? 3 : 1;
  c.on.missing = c.on.micro_batches > 1 ? 1 : 0;
  c.on.in_flight = c.on.micro_batches > 1 && c.on.policy.delay_weight_gradients ? 2 : 1;
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
            if (mesh.context_heads > 1 && exchange == Exchange::all_gather) continue;
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
