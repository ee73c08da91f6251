// Every mesh has the loss and gradients of one rank: sharding, replication, context parallelism, recompute,
// accumulation, interleaved micro-batches with delayed weight gradients, random delays.
#include <map>
#include <set>
#include <tuple>

#include "outcome.h"

namespace hawser {
namespace mesh_test {

using testing::CaseName;
using testing::CaseTest;
using testing::expect_gradients;
using testing::layout_of;
using testing::MeshCase;
using testing::meshes;
using testing::Outcome;
using testing::run;
using testing::same_bits;

// The second of two blocks has the window, if there is one.
models::ModelDescription description_of(const MeshCase& c) {
  models::ModelDescription description = testing::toy_description(c.tied);
  description.blocks.back().attention.window = c.mask.window;
  return description;
}

Outcome run(const models::Model& model, const MeshCase& c) {
  const plan::LayoutChoices layout = layout_of(c, model);
  const auto mesh = rank_mesh(layout.mesh);
  return run(model, layout, *mesh, c.batch_size(), c.random_delay_s);
}

using Mesh = CaseTest<MeshCase>;

TEST_P(Mesh, EqualsOneRank) {
  const MeshCase& c = GetParam();
  const models::Model model(description_of(c));
  const Outcome ours = run(model, c);
  // One micro-batch after another, no recompute.
  static std::map<std::tuple<std::int64_t, bool, bool, std::int64_t>, Outcome> references;
  auto& one = references[{c.batch_size(), c.tied, c.packed, c.mask.window}];
  if (one.gradients.empty()) {
    one = testing::on_one_rank([&] {
      return run(model, layout_of({.packed = c.packed, .mask = c.mask}, model), *comm::make_self_mesh(), c.batch_size(),
                 0);
    });
  }
  EXPECT_NEAR(ours.loss, one.loss, 1e-5 * one.loss);
  // With window 1, the exact gradients of that block's q and k are zero.
  expect_gradients(c.mesh, ours, one, c.mask.window == 1 ? 2e-4 : 1e-5);
}

std::vector<MeshCase> every_policy() {
  std::vector<MeshCase> out;
  for (MeshCase c : meshes()) {
    for (const Checkpointing checkpointing : {Checkpointing::none, Checkpointing::selective, Checkpointing::full}) {
      for (const int micro_batches : {1, 3}) {
        c.policy.checkpointing = checkpointing;
        c.micro_batches = micro_batches;
        c.by_work = micro_batches == 3;
        c.missing = micro_batches == 3 ? 1 : 0;
        out.push_back(c);
      }
    }
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(EveryPolicy, Mesh, ::testing::ValuesIn(every_policy()), CaseName());

std::vector<MeshCase> options() {
  std::vector<MeshCase> out;
  for (const MeshCase& mesh : meshes()) {
    MeshCase c = mesh;
    c.policy.checkpointing = Checkpointing::projections;
    c.head_groups = 2;
    c.by_work = true;
    out.push_back(c);
    c = mesh;
    c.micro_batches = 3;
    c.accumulation = GradientAccumulation::local;
    c.prefetch = 0;
    c.tied = false;
    out.push_back(c);
    c = mesh;
    c.prefetch = 3;
    c.random_delay_s = 0.0005;
    out.push_back(c);
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Options, Mesh, ::testing::ValuesIn(options()), CaseName());

// The tables and strided blocks of a GPU's dense attention call, whose promises the CPU backend checks: sequences that
// end in any chunk, and one that no rank has.
std::vector<MeshCase> one_document_per_sequence() {
  std::vector<MeshCase> out;
  for (MeshCase c : meshes()) {
    for (const Checkpointing checkpointing : {Checkpointing::none, Checkpointing::full}) {
      c.packed = false;
      c.policy.checkpointing = checkpointing;
      c.micro_batches = 3;
      c.missing = 1;
      c.head_groups = checkpointing == Checkpointing::none ? 2 : 1;
      out.push_back(c);
      out.back().by_work = true;  // chunks by work have no strided blocks
      out.back().random_delay_s = 0.0005;
      out.push_back(c);
    }
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(OneDocumentPerSequence, Mesh, ::testing::ValuesIn(one_document_per_sequence()), CaseName());

// Layers with and without a window. A chunk in zig-zag has 31, 16, 8 or 4 rows, for 1 to 8 ranks.
std::vector<MeshCase> alternating_windows() {
  std::vector<MeshCase> out;
  for (MeshCase c : meshes()) {
    const std::int64_t chunk = ceil_div(testing::kToyLength, std::int64_t{2} * c.mesh.context);
    if (c.mesh.context == 1 && the_world->size() > 1) continue;
    for (const std::int64_t window :
         std::set<std::int64_t>{1, 2, 7, chunk, chunk + 1, 3 * chunk, testing::kToyLength + 1}) {
      c.mask.window = window;
      c.head_groups = 2;
      for (const bool packed : {false, true}) {
        c.packed = packed;
        c.by_work = packed && window % 2 == 1;
        c.policy.checkpointing = packed ? Checkpointing::full : Checkpointing::none;
        out.push_back(c);
      }
    }
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(AlternatingWindows, Mesh, ::testing::ValuesIn(alternating_windows()), CaseName());

std::vector<MeshCase> two_in_flight() {
  std::vector<MeshCase> out;
  for (MeshCase c : meshes()) {
    for (const Checkpointing checkpointing : {Checkpointing::none, Checkpointing::selective, Checkpointing::full}) {
      c.policy = {.checkpointing = checkpointing, .delay_weight_gradients = true};
      c.micro_batches = c.in_flight = 2;
      out.push_back(c);
    }
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(TwoInFlight, Mesh, ::testing::ValuesIn(two_in_flight()), CaseName());

// Fewer sequences than data ranks: some ranks run only padding, in their one micro-batch or in the second of two.
std::vector<MeshCase> ranks_without_a_sequence() {
  std::vector<MeshCase> out;
  for (MeshCase c : meshes()) {
    if (c.data_ranks() == 1) continue;
    c.missing = 2LL * c.data_ranks() - 1;
    out.push_back(c);
    c.micro_batches = 2;
    out.push_back(c);
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(RanksWithoutASequence, Mesh, ::testing::ValuesIn(ranks_without_a_sequence()), CaseName());

using MeshKeys = CaseTest<MeshCase>;

// Gradients of gathered keys that are reduced in bf16 equal those in float32 except for rounding: each share once, and
// the sum of two chunks once. Each parameter sums few such elements.
TEST_P(MeshKeys, ReducedInBf16DifferOnlyByRounding) {
  MeshCase c = GetParam();
  const models::Model model(testing::toy_description(c.tied));
  const Outcome rounded = run(model, c);
  c.kv_reduce_dtype = DType::f32;
  const Outcome exact = run(model, c);
  EXPECT_EQ(rounded.loss, exact.loss);
  expect_gradients(c.mesh, rounded, exact, 0.02);
}

std::vector<MeshCase> keys_in_bf16() {
  std::vector<MeshCase> out;
  for (int context = 2; context <= the_world->size(); context *= 2) {
    const int replicate = the_world->size() / context;
    for (const bool packed : {false, true}) {
      out.push_back({.mesh = {.context = context, .replicate = replicate, .shard_context = false},
                     .packed = packed,
                     .compute = DType::bf16,
                     .kv_reduce_dtype = DType::bf16});
    }
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Meshes, MeshKeys, ::testing::ValuesIn(keys_in_bf16()), CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(MeshKeys);  // one rank gathers no keys

struct RecomputeCase {
  MeshCase saved;  // which recomputes nothing
  std::array<Checkpointing, 2> by_block;

  std::string name() const {
    return testing::joined(saved.name(), testing::name_of(by_block[0]), testing::name_of(by_block[1]));
  }
  friend void PrintTo(const RecomputeCase& c, std::ostream* out) { *out << c.name(); }
};

using MeshRecompute = CaseTest<RecomputeCase>;

// Recompute runs the kernels of forward on the same inputs: bitwise equal to saving everything, on every mesh.
TEST_P(MeshRecompute, IsBitwiseEqual) {
  const MeshCase& c = GetParam().saved;
  const models::Model model(testing::toy_description(c.tied));
  plan::LayoutChoices layout = layout_of(c, model);
  const auto mesh = rank_mesh(layout.mesh);
  static std::map<std::string, Outcome> references;
  Outcome& kept = references[c.name()];
  if (kept.gradients.empty()) kept = run(model, layout, *mesh, c.batch_size(), 0);
  for (int layer = 0; layer < model.layers(); ++layer) {
    layout.policies[static_cast<std::size_t>(layer)].checkpointing =
        GetParam().by_block[static_cast<std::size_t>(layer / 2)];
  }
  const Outcome again = run(model, layout, *mesh, c.batch_size(), 0);
  EXPECT_EQ(again.loss, kept.loss);
  for (const auto& [name, gradient] : again.gradients) {
    EXPECT_TRUE(same_bits(gradient, kept.gradients.at(name))) << name;
  }
}

std::vector<RecomputeCase> recomputed() {
  std::vector<RecomputeCase> out;
  for (MeshCase c : meshes()) {
    for (const DType compute : {DType::f32, DType::bf16}) {
      c.compute = compute;
      c.micro_batches = 2;
      out.push_back({c, {Checkpointing::full, Checkpointing::gate_up}});
      out.push_back({c, {Checkpointing::qkv, Checkpointing::projections}});
      out.push_back({c, {Checkpointing::projections, Checkpointing::selective}});
      out.push_back({c, {Checkpointing::selective, Checkpointing::full}});
    }
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Meshes, MeshRecompute, ::testing::ValuesIn(recomputed()), CaseName());

using MeshReduction = CaseTest<MeshCase>;

// Gradients reduced in bf16. Each rank's share of a micro-batch is rounded once before it is added (to 2^-9 of each
// element at most), and once more if a parameter is used twice in it; the sum is float32. So the difference from
// reduce_dtype float32 on the same mesh is at most 2^-8 of the sum of the shares' norms, which may exceed the norm of
// their sum: the test allows 2%. Gradients that are not reduced in each micro-batch are float32: they are equal.
TEST_P(MeshReduction, InBf16DiffersOnlyByRounding) {
  MeshCase c = GetParam();
  const models::Model model(testing::toy_description(c.tied));
  const Outcome rounded = run(model, c);
  c.reduce_dtype = DType::f32;
  const Outcome exact = run(model, c);
  EXPECT_EQ(rounded.loss, exact.loss);
  const bool travels = c.mesh.shard_ranks() > 1 && c.accumulation == GradientAccumulation::sharded;
  bool differ = false;
  for (const auto& [name, gradient] : rounded.gradients) {
    const bool same = same_bits(gradient, exact.gradients.at(name));
    if (!travels) {
      EXPECT_TRUE(same) << name;
    } else {
      differ |= !same;
    }
  }
  EXPECT_EQ(the_world->any(differ), travels);
  expect_gradients(c.mesh, rounded, exact, 0.02);
}

std::vector<MeshCase> reduced_in_bf16() {
  std::vector<MeshCase> out;
  for (MeshCase c : meshes()) {
    for (const int micro_batches : {1, 3}) {
      for (const auto accumulation : {GradientAccumulation::sharded, GradientAccumulation::local}) {
        c.compute = c.reduce_dtype = DType::bf16;
        c.micro_batches = micro_batches;
        c.accumulation = accumulation;
        c.tied = micro_batches == 1;
        out.push_back(c);
      }
    }
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Meshes, MeshReduction, ::testing::ValuesIn(reduced_in_bf16()), CaseName());

}  // namespace mesh_test
}  // namespace hawser
