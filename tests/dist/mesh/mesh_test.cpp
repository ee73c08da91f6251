// Every mesh has the loss and gradients of one rank: sharding, replication, context parallelism, recompute,
// accumulation, interleaved micro-batches with delayed weight gradients, random delays.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <tuple>

#include "mesh_case.h"

namespace hawser {
namespace mesh_test {

using testing::Case;
using testing::compare_shards;
using testing::layout_of;
using testing::Outcome;
using testing::run;

// The second of two blocks has a window, if there is one.
models::ModelDescription description_of(const Case& c) {
  models::ModelDescription description = testing::toy_description(c.tied);
  description.blocks.back().attention.window = c.window;
  return description;
}

void compare(const Case& c, const Outcome& mesh, const Outcome& one) {
  EXPECT_NEAR(mesh.loss, one.loss, 1e-5 * one.loss) << c.text();
  // With window 1, the exact gradients of that block's q and k are zero.
  compare_shards(c, mesh, one, c.window == 1 ? 2e-4 : 1e-5);
}

void check(const Case& c) {
  const models::Model model(description_of(c));
  const plan::LayoutChoices layout = layout_of(c, model);
  const std::int64_t batch_size = 2LL * layout.data_ranks() * c.accumulation - c.missing;
  const auto mesh = rank_mesh(layout.mesh);
  const Outcome ours = run(model, layout, *mesh, batch_size, c.random_delay_s);
  // The reference: one rank, one micro-batch after another, no recompute.
  static std::map<std::tuple<std::int64_t, bool, bool, std::int64_t>, Outcome> references;
  auto& one = references[{batch_size, c.tied, c.packed, c.window}];
  if (one.gradients.empty()) {
    one = testing::on_one_rank([&] {
      return run(model, layout_of({.packed = c.packed, .window = c.window}, model), *comm::make_self_mesh(), batch_size,
                 0);
    });
  }
  compare(c, ours, one);
}

TEST(Mesh, EveryMeshEqualsOneRankUnderEveryPolicy) {
  for (const Case& mesh : testing::cases_of_all_meshes()) {
    for (const Checkpointing checkpointing : {Checkpointing::none, Checkpointing::selective, Checkpointing::full}) {
      for (const int accumulation : {1, 3}) {
        Case c = mesh;
        c.checkpointing = checkpointing;
        c.accumulation = accumulation;
        c.by_work = accumulation == 3;
        c.missing = accumulation == 3 ? 1 : 0;
        check(c);
      }
    }
  }
}

TEST(Mesh, OptionsLeaveGradientsEqual) {
  for (const Case& mesh : testing::cases_of_all_meshes()) {
    Case c = mesh;
    c.checkpointing = Checkpointing::projections;
    c.head_groups = 2;
    c.by_work = true;
    check(c);
    c = mesh;
    c.accumulation = 3;
    c.policy = GradientAccumulation::local;
    c.prefetch = 0;
    c.tied = false;
    check(c);
    c = mesh;
    c.prefetch = 3;
    c.random_delay_s = 0.0005;
    check(c);
  }
}

// The tables and strided blocks of a GPU's dense attention call, whose promises the CPU backend checks: sequences that
// end in any chunk, and one that no rank has.
TEST(Mesh, OneDocumentPerSequenceInEqualChunks) {
  for (const Case& mesh : testing::cases_of_all_meshes()) {
    for (const Checkpointing checkpointing : {Checkpointing::none, Checkpointing::full}) {
      Case c = mesh;
      c.packed = false;
      c.checkpointing = checkpointing;
      c.accumulation = 3;
      c.missing = 1;
      c.head_groups = checkpointing == Checkpointing::none ? 2 : 1;
      check(c);
      c.by_work = true;  // chunks by work have no strided blocks
      c.random_delay_s = 0.0005;
      check(c);
    }
  }
}

// Layers with and without a window. A chunk in zig-zag has 31, 16, 8 or 4 rows, for 1 to 8 ranks.
TEST(Mesh, AlternatingWindowsEqualOneRank) {
  for (const Case& mesh : testing::cases_of_all_meshes()) {
    const std::int64_t chunk = ceil_div(testing::kToyLength, std::int64_t{2} * mesh.context);
    if (mesh.context == 1 && the_world->size() > 1) continue;
    for (const std::int64_t window :
         {std::int64_t{1}, std::int64_t{2}, std::int64_t{7}, chunk, chunk + 1, 3 * chunk, testing::kToyLength + 1}) {
      Case c = mesh;
      c.window = window;
      c.head_groups = 2;
      for (const bool packed : {false, true}) {
        c.packed = packed;
        c.by_work = packed && window % 2 == 1;
        c.checkpointing = packed ? Checkpointing::full : Checkpointing::none;
        check(c);
      }
    }
  }
}

// Gradients of gathered keys that are reduced in bf16 equal those in float32 except for rounding: each share once, and
// the sum of two chunks once. Each parameter sums few such elements.
TEST(Mesh, KeyGradientsInBf16DifferOnlyByRounding) {
  for (const Case& mesh : testing::cases_of_all_meshes()) {
    if (mesh.context == 1) continue;
    for (const bool packed : {false, true}) {
      Case c = mesh;
      c.compute = DType::bf16;
      c.packed = packed;
      c.sharded = false;
      c.shard = 1;
      c.replicate = the_world->size() / c.context;
      const models::Model model(testing::toy_description(c.tied));
      const std::int64_t batch_size = 2LL * c.replicate;
      const auto groups = rank_mesh(layout_of(c, model).mesh);
      const Outcome exact = run(model, layout_of(c, model), *groups, batch_size, 0);
      c.kv_reduce_dtype = DType::bf16;
      const Outcome rounded = run(model, layout_of(c, model), *groups, batch_size, 0);
      EXPECT_EQ(rounded.loss, exact.loss) << c.text();
      compare_shards(c, rounded, exact, 0.02);
    }
  }
}

TEST(Mesh, TwoInterleavedMicroBatchesWithDelayedWeightGradients) {
  for (const Case& mesh : testing::cases_of_all_meshes()) {
    for (const Checkpointing checkpointing : {Checkpointing::none, Checkpointing::selective, Checkpointing::full}) {
      Case c = mesh;
      c.checkpointing = checkpointing;
      c.accumulation = 2;
      c.in_flight = 2;
      c.delay_weight_gradients = true;
      check(c);
    }
  }
}

// Recompute runs the kernels of forward on the same inputs: bitwise equal to saving everything, on every mesh.
TEST(Mesh, RecomputeIsBitwiseEqual) {
  using Policies = std::vector<Checkpointing>;  // by block
  const std::vector<Policies> all = {{Checkpointing::full, Checkpointing::gate_up},
                                     {Checkpointing::qkv, Checkpointing::projections},
                                     {Checkpointing::projections, Checkpointing::selective},
                                     {Checkpointing::selective, Checkpointing::full}};
  for (Case c : testing::cases_of_all_meshes()) {
    for (const DType compute : {DType::f32, DType::bf16}) {
      c.compute = compute;
      c.accumulation = 2;
      const models::Model model(testing::toy_description(c.tied));
      plan::LayoutChoices layout = layout_of(c, model);
      const std::int64_t batch_size = 2LL * layout.data_ranks() * c.accumulation;
      const auto groups = rank_mesh(layout.mesh);
      const Outcome kept = run(model, layout, *groups, batch_size, 0);
      for (const Policies& policies : all) {
        std::string text = c.text();
        for (int layer = 0; layer < model.layers(); ++layer) {
          const Checkpointing policy = policies[static_cast<std::size_t>(layer / 2)];
          layout.policies[static_cast<std::size_t>(layer)].checkpointing = policy;
          if (layer % 2 == 0) text += cat(", ", static_cast<int>(policy));
        }
        const Outcome again = run(model, layout, *groups, batch_size, 0);
        EXPECT_EQ(again.loss, kept.loss) << text;
        for (const auto& [name, gradient] : again.gradients) {
          const std::vector<float>& reference = kept.gradients.at(name);
          EXPECT_EQ(std::memcmp(gradient.data(), reference.data(), gradient.size() * sizeof(float)), 0)
              << text << ": " << name;
        }
      }
    }
  }
}

// Gradients reduced in bf16. Each rank's share of a micro-batch is rounded once before it is added (to 2^-9 of each
// element at most), and once more if a parameter is used twice in it; the sum is float32. So the difference from
// reduce_dtype float32 on the same mesh is at most 2^-8 of the sum of the shares' norms, which may exceed the norm of
// their sum: the test allows 2%. Gradients that are not reduced in each micro-batch are float32: they are equal.
TEST(Mesh, GradientsReducedInBf16DifferOnlyByRounding) {
  for (const Case& mesh : testing::cases_of_all_meshes()) {
    for (const int accumulation : {1, 3}) {
      for (const auto policy : {GradientAccumulation::sharded, GradientAccumulation::local}) {
        Case c = mesh;
        c.compute = DType::bf16;
        c.accumulation = accumulation;
        c.policy = policy;
        c.tied = accumulation == 1;
        const models::Model model(testing::toy_description(c.tied));
        const std::int64_t batch_size = 2LL * c.shard * c.replicate * accumulation;
        const auto groups = rank_mesh(layout_of(c, model).mesh);
        const Outcome exact = run(model, layout_of(c, model), *groups, batch_size, 0);
        c.reduce_dtype = DType::bf16;
        const Outcome rounded = run(model, layout_of(c, model), *groups, batch_size, 0);
        EXPECT_EQ(rounded.loss, exact.loss) << c.text();
        const bool travels = layout_of(c, model).mesh.shard_ranks() > 1 && policy == GradientAccumulation::sharded;
        bool differ = false;
        for (const auto& [name, gradient] : rounded.gradients) {
          const std::vector<float>& reference = exact.gradients.at(name);
          const bool same = std::memcmp(gradient.data(), reference.data(), gradient.size() * sizeof(float)) == 0;
          if (!travels) {
            EXPECT_TRUE(same) << c.text() << ": " << name;
          } else {
            differ |= !same;
          }
        }
        EXPECT_EQ(the_world->any(differ), travels) << c.text();
        compare_shards(c, rounded, exact, 0.02);
      }
    }
  }
}

// Fewer sequences than data ranks: some ranks run only padding.
TEST(Mesh, RanksWithoutASequenceRunPadding) {
  for (Case c : testing::cases_of_all_meshes()) {
    if (c.shard * c.replicate == 1) continue;
    c.missing = 2LL * c.shard * c.replicate - 1;
    check(c);
  }
}

}  // namespace mesh_test
}  // namespace hawser
