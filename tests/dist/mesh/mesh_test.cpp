// Every mesh has the loss and gradients of one rank: sharding, replication, context parallelism, recompute,
// accumulation, interleaved micro-batches with delayed weight gradients, random delays.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "engine/session.h"
#include "mesh_world.h"
#include "models/weights.h"
#include "support/toy_steps.h"

namespace hawser {
namespace {

struct Case {
  int context = 1, shard = 1, replicate = 1;
  bool sharded = true;
  int accumulation = 1;
  Checkpointing checkpointing = Checkpointing::none;
  bool keep_attention = false;
  bool delay_weight_gradients = false;
  int in_flight = 1;
  bool by_work = false;
  int head_groups = 1;
  int prefetch = 1;
  GradientAccumulation policy = GradientAccumulation::sharded;
  double random_delay_s = 0;
  bool tied = true;
  DType compute = DType::f32, reduce_dtype = DType::f32, kv_reduce_dtype = DType::f32;
  bool packed = true;        // else a sequence is one document
  std::int64_t missing = 0;  // sequences missing for a divisible global batch
  std::int64_t window = 0;   // of the second block's attention

  std::string text() const {
    return cat(
        "context ", context, " shard ", shard, " replicate ", replicate, sharded ? "" : " unsharded", " accumulation ",
        accumulation, " checkpointing ", static_cast<int>(checkpointing), keep_attention ? " keep attention" : "",
        delay_weight_gradients ? " delayed weights" : "", " in flight ", in_flight, by_work ? " by work" : "",
        " head groups ", head_groups, " prefetch ", prefetch, policy == GradientAccumulation::local ? " local" : "",
        compute == DType::bf16
            ? cat(" bf16, reduce_dtype ", to_string(reduce_dtype), ", kv_reduce_dtype ", to_string(kv_reduce_dtype))
            : "",
        packed ? "" : " unpacked", " missing ", missing, " window ", window);
  }
};

plan::Layout layout_of(const Case& c, const models::Model& model) {
  plan::Layout layout;
  layout.mesh = {.context = c.context, .shard = c.shard, .replicate = c.replicate, .shard_context = c.sharded};
  layout.batch = testing::toy_batch(c.context, c.packed);
  if (c.by_work && c.context > 1) layout.batch.chunks_per_rank = 4, layout.batch.together = 2;
  if (c.by_work) layout.batch.split = batches::SequenceSplit::by_work;
  layout.compute = c.compute;
  layout.reduce_dtype = c.reduce_dtype;
  layout.kv_reduce_dtype = c.kv_reduce_dtype;
  layout.head_groups = c.head_groups;
  layout.prefetch = c.prefetch;
  layout.in_flight = c.in_flight;
  layout.accumulation = c.policy;
  layout.policies.assign(static_cast<std::size_t>(model.layers()),
                         {.checkpointing = c.checkpointing,
                          .keep_attention = c.keep_attention,
                          .delay_weight_gradients = c.delay_weight_gradients});
  plan::set_windows(layout.batch, model);
  plan::set_bounds(layout);
  return layout;
}

// The second of two blocks has a window, if there is one.
models::ModelDescription description_of(const Case& c) {
  models::ModelDescription description = testing::toy_description(c.tied);
  description.blocks.back().attention.window = c.window;
  return description;
}

struct Outcome {
  double loss = 0;
  std::map<std::string, std::vector<float>> gradients;  // full tensors; on a mesh other ranks' elements are NaN
};

Outcome run(const models::Model& model, plan::Layout layout, comm::Mesh& mesh, std::int64_t batch_size,
            double random_delay_s) {
  const testing::ToySteps steps(layout, mesh.place(), batch_size);
  const auto device = make_cpu_device({.random_delay_s = random_delay_s, .delay_seed = 5});
  engine::Session session(model, layout, *device, mesh, {step::Purpose::gradient_norms, step::Purpose::loss});
  session.initialise(3);
  const std::int64_t tokens = steps.targets(0);
  const auto output = session.enqueue(step::Purpose::gradient_norms, steps.input(0));
  session.synchronize();
  Outcome out;
  out.loss = output.result->loss_sum.value() / static_cast<double>(tokens);
  for (int f = 0; f < static_cast<int>(model.flats().size()); ++f) {
    const nn::Flat& flat = model.flat(f);
    const step::FlatState& state = session.state().flat(f);
    const TensorView shard = session.executor(step::Purpose::gradient_norms).gradient_shard(f);
    for (const nn::Param& param : flat.params()) {
      for (const nn::Segment& segment : param.segments) {
        out.gradients[segment.name].assign(static_cast<std::size_t>(nn::segment_shape(segment).elements()),
                                           std::nanf(""));
      }
    }
    for (const models::SegmentPiece& piece : models::segment_pieces(flat, state.begin, state.count)) {
      const nn::Param& param = flat.params()[static_cast<std::size_t>(piece.param)];
      std::copy_n(shard.data<float>() + piece.at, piece.count,
                  out.gradients[param.segments[static_cast<std::size_t>(piece.segment)].name].begin() + piece.first);
    }
  }
  return out;
}

// Compares each gradient of `mesh`, summed over the pieces of all ranks, with that of `one`.
void compare_shards(const Case& c, const Outcome& mesh, const Outcome& one, double max) {
  nlohmann::json mine;
  for (const auto& [name, gradient] : mesh.gradients) {
    const std::vector<float>& reference = one.gradients.at(name);
    double difference = 0, norm = 0;
    std::int64_t elements = 0;
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      if (std::isnan(gradient[i])) continue;  // another rank's; a NaN of this rank's is missing in the count
      difference += std::pow(double{gradient[i]} - reference[i], 2);
      norm += std::pow(double{reference[i]}, 2);
      ++elements;
    }
    mine[name] = {difference, norm, elements};
  }
  std::map<std::string, std::array<double, 3>> sums;
  for (const std::string& text : the_world->all_gather_strings(mine.dump())) {
    const nlohmann::json part = nlohmann::json::parse(text);
    for (const auto& [name, value] : part.items()) {
      for (std::size_t i = 0; i < 3; ++i) sums[name][i] += value[i].get<double>();
    }
  }
  double full = 0;
  for (const auto& [name, sum] : sums) full += sum[1];
  const double copies = c.sharded ? c.replicate : the_world->size();
  for (const auto& [name, sum] : sums) {
    EXPECT_EQ(sum[2], copies * static_cast<double>(one.gradients.at(name).size())) << c.text() << ": " << name;
    // The lower bound: a gradient that is tiny relative to the model's is compared relative to the model's.
    const double floor = 1e-3 * std::sqrt(full);
    EXPECT_LT(std::sqrt(sum[0]) / std::max(std::sqrt(sum[1]), floor), max) << c.text() << ": " << name;
  }
}

void compare(const Case& c, const Outcome& mesh, const Outcome& one) {
  EXPECT_NEAR(mesh.loss, one.loss, 1e-5 * one.loss) << c.text();
  // With window 1, the exact gradients of that block's q and k are zero.
  compare_shards(c, mesh, one, c.window == 1 ? 2e-4 : 1e-5);
}

void check(const Case& c) {
  const models::Model model(description_of(c));
  const plan::Layout layout = layout_of(c, model);
  const std::int64_t batch_size = 2LL * layout.data_ranks() * c.accumulation - c.missing;
  const auto mesh = comm::make_mpi_mesh(*the_world, layout.mesh, 60.0);
  const Outcome ours = run(model, layout, *mesh, batch_size, c.random_delay_s);
  // The reference: one rank, one micro-batch after another, no recompute.
  static std::map<std::tuple<std::int64_t, bool, bool, std::int64_t>, Outcome> references;
  auto& one = references[{batch_size, c.tied, c.packed, c.window}];
  if (one.gradients.empty()) {
    const auto self = comm::make_self_mesh();
    one = run(model, layout_of({.packed = c.packed, .window = c.window}, model), *self, batch_size, 0);
  }
  compare(c, ours, one);
}

// All factorisations of the world into context x shard x replicate, and an unsharded one per context degree.
std::vector<Case> meshes() {
  std::vector<Case> cases;
  const int world = the_world->size();
  for (int context = 1; context <= world; context *= 2) {
    for (int shard = 1; context * shard <= world; shard *= 2) {
      cases.push_back({.context = context, .shard = shard, .replicate = world / (context * shard)});
    }
    cases.push_back({.context = context, .replicate = world / context, .sharded = false});
  }
  return cases;
}

TEST(Mesh, EveryMeshEqualsOneRankUnderEveryPolicy) {
  for (const Case& mesh : meshes()) {
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
  for (const Case& mesh : meshes()) {
    Case c = mesh;
    c.checkpointing = Checkpointing::full;
    c.keep_attention = true;
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
  for (const Case& mesh : meshes()) {
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
  for (const Case& mesh : meshes()) {
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
  for (const Case& mesh : meshes()) {
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
      const auto groups = comm::make_mpi_mesh(*the_world, layout_of(c, model).mesh, 60.0);
      const Outcome exact = run(model, layout_of(c, model), *groups, batch_size, 0);
      c.kv_reduce_dtype = DType::bf16;
      const Outcome rounded = run(model, layout_of(c, model), *groups, batch_size, 0);
      EXPECT_EQ(rounded.loss, exact.loss) << c.text();
      compare_shards(c, rounded, exact, 0.02);
    }
  }
}

TEST(Mesh, TwoInterleavedMicroBatchesWithDelayedWeightGradients) {
  for (const Case& mesh : meshes()) {
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
  for (Case c : meshes()) {
    for (const DType compute : {DType::f32, DType::bf16}) {
      c.compute = compute;
      c.accumulation = 2;
      const models::Model model(testing::toy_description(c.tied));
      plan::Layout layout = layout_of(c, model);
      const std::int64_t batch_size = 2LL * layout.data_ranks() * c.accumulation;
      const auto groups = comm::make_mpi_mesh(*the_world, layout.mesh, 60.0);
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
  for (const Case& mesh : meshes()) {
    for (const int accumulation : {1, 3}) {
      for (const auto policy : {GradientAccumulation::sharded, GradientAccumulation::local}) {
        Case c = mesh;
        c.compute = DType::bf16;
        c.accumulation = accumulation;
        c.policy = policy;
        c.tied = accumulation == 1;
        const models::Model model(testing::toy_description(c.tied));
        const std::int64_t batch_size = 2LL * c.shard * c.replicate * accumulation;
        const auto groups = comm::make_mpi_mesh(*the_world, layout_of(c, model).mesh, 60.0);
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
  for (Case c : meshes()) {
    if (c.shard * c.replicate == 1) continue;
    c.missing = 2LL * c.shard * c.replicate - 1;
    check(c);
  }
}

}  // namespace
}  // namespace hawser
