// Slices of tensors over ranks: attention heads, the MLP's inner width and vocabularies are cut over tensor ranks, all
// other parameters are copies. Each element of a copy is reduced, counted in the norm and saved once.
#include "models/weights.h"
#include "nn/testing/context.h"
#include "tensor_case.h"
#include "toy_muon.h"
#include "toy_optimizers.h"

namespace hawser {
namespace tensor_test {

using testing::CaseName;
using testing::CaseTest;
using testing::divided_mesh;
using testing::Division;
using testing::kSequence;
using testing::kVocabulary;
using testing::MeshCase;
using testing::part_of;
using testing::spec_without_vocabulary;
using testing::TensorCase;
using testing::train;
using testing::train_own_adapters;
using testing::Trained;
using testing::with_kv_copies;

const nn::SavePolicy kFull{.checkpointing = Checkpointing::full}, kDelayed{.delay_weight_gradients = true},
    kSelectiveDelayed{.checkpointing = Checkpointing::selective, .delay_weight_gradients = true};

nn::FlatSpec by_rank(const nn::Param& param) {
  nn::FlatSpec spec = param.flat;
  spec.group = testing::group_by_rank(param);
  return spec;
}

// Muon's matrices: those of the blocks.
nn::FlatSpec matrices_of_blocks(const nn::Param& param) {
  nn::FlatSpec spec = param.flat;
  spec.group = param.name.find("layers.") != std::string::npos && param.shape.rank() == 2 ? 1 : 0;
  return spec;
}

std::string tied_or_not(bool tied) {
  return tied ? "tied" : "untied";
}

using Tensor = CaseTest<TensorCase>;

TEST_P(Tensor, TrainsLikeOneRank) {
  testing::expect_like_one_rank(GetParam());
}

std::vector<TensorCase> slices_and_copies() {
  std::vector<TensorCase> out;
  const int world = the_world->size();
  if (world < 4) return out;  // two tensor ranks with two shards
  for (const bool tied : {true, false}) {
    TensorCase c{.model = tied_or_not(tied),
                 .on = {.mesh = {.tensor = 2, .shard = world / 2}},
                 .whole = testing::toy_description(tied),
                 .spec = spec_without_vocabulary};
    out.push_back(c);
    c.on.mesh = {.tensor = 2, .context = 2, .shard = world / 4};
    out.push_back(c);
    if (world < 8) continue;
    c.on.mesh = {.tensor = 2, .shard = 2, .replicate = 2};
    out.push_back(c);
  }
  // Each tensor rank has the full gradient of the norm, the sum of both layers', as a copy.
  models::ModelDescription one_norm = testing::toy_description();
  for (models::BlockDescription& block : one_norm.blocks) {
    block.attention.norm_config = block.mlp.norm_config = {.kind = nn::NormKind::layer, .bias = true};
    block.mlp.norm = block.attention.norm;
    block.residual = models::Residual::parallel_one_norm;
  }
  out.push_back({.model = "one_norm",
                 .on = {.mesh = {.tensor = 2, .shard = world / 2}, .policy = kFull},
                 .whole = one_norm,
                 .spec = spec_without_vocabulary});
  return out;
}
INSTANTIATE_TEST_SUITE_P(SlicesAndCopies, Tensor, ::testing::ValuesIn(slices_and_copies()), CaseName());

std::vector<TensorCase> sequence_parallel() {
  std::vector<TensorCase> out;
  bool tied = false;
  for (const nn::SavePolicy& policy : nn::testing::all_policies()) {
    // Eight ranks share the cores of four: one policy, with weight gradients at once and delayed.
    if (the_world->size() == 8 && policy.checkpointing != Checkpointing::projections) continue;
    tied = !tied;
    out.push_back({.model = tied_or_not(tied),
                   .on = {.mesh = divided_mesh(), .policy = policy, .division = kSequence},
                   .whole = testing::toy_description(tied)});
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(SequenceParallel, Tensor, ::testing::ValuesIn(sequence_parallel()), CaseName());

std::vector<TensorCase> vocabulary() {
  std::vector<TensorCase> out;
  const int world = the_world->size(), tensor = std::min(world, 2);
  for (const bool tied : {true, false}) {
    TensorCase c{.model = tied_or_not(tied), .whole = testing::toy_description(tied)};
    c.on = {.mesh = {.tensor = tensor, .shard = 1, .replicate = world / tensor}, .division = kVocabulary};
    out.push_back(c);
    if (world < 4) continue;
    c.on = {
        .mesh = {.tensor = 2, .context = 2, .shard = world / 4}, .policy = kSelectiveDelayed, .division = kSequence};
    out.push_back(c);
    if (world < 8) continue;
    c.on = {.mesh = {.tensor = 2, .shard = 2, .replicate = 2}, .division = kSequence};
    out.push_back(c);
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Vocabulary, Tensor, ::testing::ValuesIn(vocabulary()), CaseName());

// A vocabulary that does not divide is padded, so that all tensor ranks have buffers of equal sizes and the first rank
// plans for them. Padding is in no sum, norm, statistic of rows or checkpoint.
std::vector<TensorCase> one_plan() {
  std::vector<TensorCase> out;
  if (the_world->size() < 2) return out;
  for (const bool tied : {true, false}) {
    TensorCase c{.model = tied_or_not(tied), .whole = testing::toy_description(tied)};
    for (const Division& division : {kVocabulary, kSequence}) {
      c.on = {.mesh = divided_mesh(), .policy = kFull, .division = division};
      c.on.division.one_plan = true;
      out.push_back(c);
    }
    if (kRankDevice != DeviceKind::cpu) continue;  // this optimizer computes on processors
    c.on = {.mesh = divided_mesh(), .division = {.vocabulary = true, .one_plan = true}};
    c.spec = by_rank;
    c.optimizer = std::make_shared<testing::Adafactor>();
    out.push_back(c);
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(OnePlan, Tensor, ::testing::ValuesIn(one_plan()), CaseName());

// Two or four tensor ranks with one or two key-value heads: copies of K and V have equal values, gradients that are the
// sum over them, and count once in the norm and in checkpoints; weights, biases, norms of heads and adapters.
std::vector<TensorCase> more_ranks_than_kv_heads() {
  std::vector<TensorCase> out;
  const int world = the_world->size();
  const auto with_kv_heads = [](models::ModelDescription d, std::int64_t kv_heads, bool more) {
    for (models::BlockDescription& block : d.blocks) {
      nn::AttentionConfig& a = block.attention;
      a.kv_heads = kv_heads;
      a.qkv_bias = more;
      if (!more) continue;
      a.qk_norm = nn::NormConfig{};
      a.q_norm = cat(a.norm, "_q");
      a.k_norm = cat(a.norm, "_k");
    }
    return d;
  };
  const auto add = [&](const comm::MeshSizes& sizes, std::int64_t kv_heads) {
    const models::ModelDescription plain = with_kv_heads(testing::toy_description(), kv_heads, false),
                                   more = with_kv_heads(testing::toy_description(), kv_heads, true);
    const comm::MeshSizes mesh = with_kv_copies(sizes, plain);
    out.push_back({.model = "plain", .on = {.mesh = mesh, .division = kVocabulary}, .whole = plain});
    for (const nn::SavePolicy& policy : {kFull, kDelayed}) {
      out.push_back(
          {.model = "biases_and_norms", .on = {.mesh = mesh, .policy = policy, .division = kSequence}, .whole = more});
    }
    out.push_back({.model = "adapters",
                   .on = {.mesh = mesh, .policy = kFull, .division = kSequence},
                   .whole = with_kv_heads(testing::toy_with_adapters(0.25), kv_heads, false),
                   .spec = train_own_adapters});
  };
  if (world >= 2) add({.tensor = 2, .shard = world / 2}, 1);
  if (world >= 4) add({.tensor = 2, .context = 2, .shard = world / 4}, 1);
  if (world >= 4) add({.tensor = 4, .shard = world / 4}, 2);
  return out;
}
INSTANTIATE_TEST_SUITE_P(MoreRanksThanKeyValueHeads, Tensor, ::testing::ValuesIn(more_ranks_than_kv_heads()),
                         CaseName());

// Soft-capped scores, and ALiBi and dropout with the slopes and random numbers of each rank's heads, whose number is no
// power of two: with copies of a key-value head, with attention that each tensor rank has all of, and over context
// ranks. They are long on eight ranks.
std::vector<TensorCase> slopes_and_random_numbers() {
  std::vector<TensorCase> out;
  const int world = the_world->size();
  if (world < 2 || world > 4) return out;
  const auto add = [&](const comm::MeshSizes& mesh, std::int64_t heads, std::int64_t kv_heads,
                       const Division& division) {
    models::ModelDescription d = testing::toy_description();
    for (models::BlockDescription& block : d.blocks) {
      block.attention.heads = heads;
      block.attention.kv_heads = kv_heads;
      block.attention.softcap = 0.5;
      block.attention.alibi = true;
      block.attention.alibi_scale = &block == &d.blocks[0] ? 0.5 : 2;
      block.attention.dropout = 0.2;
    }
    out.push_back({.model = cat("heads", heads, "_of_keys", kv_heads),
                   .on = {.mesh = with_kv_copies(mesh, d), .policy = kFull, .division = division},
                   .whole = d});
  };
  add({.tensor = 2, .shard = world / 2}, 6, 1, kVocabulary);
  Division whole = kSequence;
  whole.whole_attention = 0;
  add({.tensor = 2, .shard = world / 2}, 6, 2, whole);
  if (world < 4) return out;
  add({.tensor = 2, .context = 2, .shard = world / 4}, 6, 2, kSequence);
  add({.tensor = 4, .shard = world / 4}, 12, 2, kSequence);
  return out;
}
INSTANTIATE_TEST_SUITE_P(SlopesAndRandomNumbers, Tensor, ::testing::ValuesIn(slopes_and_random_numbers()), CaseName());

// Norms before and after each layer, and of the heads of queries and keys.
void add_sandwich_norms(models::ModelDescription& description) {
  for (models::BlockDescription& block : description.blocks) {
    nn::AttentionConfig& a = block.attention;
    nn::MlpConfig& m = block.mlp;
    a.norm_place = m.norm_place = nn::NormPlace::sandwich;
    a.post_norm = cat(a.norm, "_post");
    m.post_norm = cat(m.norm, "_post");
    a.qk_norm = nn::NormConfig{};
    a.q_norm = cat(a.norm, "_q");
    a.k_norm = cat(a.norm, "_k");
  }
}

// The gradient of every norm and bias, and of both factors of every adapter, by itself.
std::vector<TensorCase> gradients_by_tensor() {
  std::vector<TensorCase> out;
  const int world = the_world->size();
  if (world != 2 && world != 4) return out;
  TensorCase norms{.model = "norms", .whole = testing::toy_description(false), .first_step = true},
      adapters{.model = "adapters",
               .whole = testing::toy_with_adapters(0.25),
               .spec = train_own_adapters,
               .second_step = true};
  add_sandwich_norms(norms.whole);
  for (TensorCase c : {norms, adapters}) {
    for (const Division& division : {kVocabulary, kSequence}) {
      c.on = {.mesh = with_kv_copies({.tensor = world}, c.whole), .division = division};
      out.push_back(c);
    }
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(GradientsByTensor, Tensor, ::testing::ValuesIn(gradients_by_tensor()), CaseName());

using TensorInBf16 = CaseTest<TensorCase>;

// Products and sums over tensor ranks in bf16 change the norm of all gradients, and the gradient of each tensor, by
// rounding only: those of queries and keys by up to 3.6%, the norm by 0.02%.
TEST_P(TensorInBf16, DiffersFromOneRankOnlyByRounding) {
  TensorCase c = GetParam();
  const Trained rounded = testing::train_on_mesh(c);
  c.on.compute = c.on.reduce_dtype = DType::f32;
  const testing::MeshAndOneRank exact = testing::expect_like_one_rank(c);
  EXPECT_NE(rounded.losses[0], exact.mesh.losses[0]);
  EXPECT_NEAR(rounded.losses[0], exact.mesh.losses[0], 2e-3 * exact.mesh.losses[0]);
  EXPECT_NEAR(rounded.clips[0], exact.mesh.clips[0], 2e-3 * exact.mesh.clips[0]);
  testing::expect_first_moments({rounded, exact.one}, 0.06);
}

std::vector<TensorCase> in_bf16() {
  std::vector<TensorCase> out = gradients_by_tensor();
  std::erase_if(out, [](const TensorCase& c) { return !c.first_step; });
  for (TensorCase& c : out) c.on.compute = c.on.reduce_dtype = DType::bf16;
  return out;
}
INSTANTIATE_TEST_SUITE_P(Divisions, TensorInBf16, ::testing::ValuesIn(in_bf16()), CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TensorInBf16);

// Layers that each tensor rank has all of, among others that are sliced: attention of the first block, the MLP of the
// second, or both. They are long on eight ranks.
std::vector<TensorCase> layers_that_are_not_sliced() {
  std::vector<TensorCase> out;
  const int world = the_world->size();
  if (world < 2 || world > 4) return out;
  TensorCase plain{.model = "plain", .whole = testing::toy_description()},
      norms{.model = "norms", .whole = testing::toy_description(false)},
      adapters{.model = "adapters", .whole = testing::toy_with_adapters(0.25), .spec = train_own_adapters},
      magnitudes{.model = "magnitudes", .whole = testing::toy_with_adapters(0.25, true), .spec = train_own_adapters};
  add_sandwich_norms(norms.whole);
  const auto add = [&](TensorCase c, const comm::MeshSizes& mesh, const Division& division,
                       const nn::SavePolicy& policy) {
    c.on = {.mesh = mesh, .policy = policy, .division = division};
    out.push_back(std::move(c));
  };
  for (const int tensor : {2, 4}) {
    if (world < tensor) continue;
    const comm::MeshSizes mesh = with_kv_copies({.tensor = tensor, .shard = world / tensor}, plain.whole);
    for (Division division : {kVocabulary, kSequence}) {
      division.whole_attention = 0;
      add(norms, mesh, division, kFull);
      division.whole_mlp = 1;
      add(plain, mesh, division, {});
      add(norms, mesh, division, kSelectiveDelayed);
      add(adapters, mesh, division, kFull);
      add(magnitudes, mesh, division, kSelectiveDelayed);
      division.whole_attention = -1;
      add(plain, mesh, division, kSelectiveDelayed);
    }
  }
  if (world < 4) return out;
  Division division = kSequence;
  division.whole_attention = 1;
  add(plain, {.tensor = 2, .context = 2, .shard = world / 4}, division, kSelectiveDelayed);
  return out;
}
INSTANTIATE_TEST_SUITE_P(LayersThatAreNotSliced, Tensor, ::testing::ValuesIn(layers_that_are_not_sliced()), CaseName());

// Complete weights of which ranks update shards, gradients that are reduced once in a step, and replicas without
// shards, where the tensor ranks still shard what all of them have.
std::vector<TensorCase> other_shards() {
  std::vector<TensorCase> out;
  const int world = the_world->size();
  if (world != 4) return out;
  const comm::MeshSizes shards{.tensor = 2, .shard = 2};
  std::vector<MeshCase> meshes(4, {.mesh = shards, .division = kSequence});
  meshes[0].shard_policy = ShardPolicy::optimizer;
  meshes[1].accumulation = GradientAccumulation::local;
  meshes[2].mesh = {.tensor = 2, .replicate = 2, .shard_context = false};
  meshes[3].mesh = {.tensor = 2, .context = 2, .shard_context = false};
  bool tied = false;
  for (const MeshCase& on : meshes) {
    tied = !tied;
    out.push_back({.model = tied_or_not(tied), .on = on, .whole = testing::toy_description(tied)});
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(OtherShards, Tensor, ::testing::ValuesIn(other_shards()), CaseName());

// One document in each sequence, chunks of context ranks that have equal work, and groups of the key-value heads that a
// tensor rank has.
std::vector<TensorCase> batches_and_head_groups() {
  std::vector<TensorCase> out;
  const int world = the_world->size();
  if (world != 2 && world != 4) return out;
  TensorCase c{.model = "plain", .on = {.mesh = divided_mesh(), .division = kSequence}};
  c.whole = testing::toy_description();
  if (world == 4) c.on.mesh = {.tensor = 2, .context = 2};
  c.on.packed = false;
  out.push_back(c);
  if (world < 4) return out;
  c.on.packed = c.on.by_work = true;
  out.push_back(c);
  for (models::BlockDescription& block : c.whole.blocks) block.attention.heads = 8, block.attention.kv_heads = 4;
  c.on.by_work = false;
  c.on.head_groups = 2;
  out.push_back(c);
  return out;
}
INSTANTIATE_TEST_SUITE_P(BatchesAndHeadGroups, Tensor, ::testing::ValuesIn(batches_and_head_groups()), CaseName());

// Norms after layers and of heads; learned positions, layer norms with biases, interleaved rotation; adapters with
// dropout.
std::vector<TensorCase> blocks_of_other_families() {
  std::vector<TensorCase> out;
  models::ModelDescription gemma = testing::toy_description(), gpt = testing::toy_description(false);
  add_sandwich_norms(gemma);
  gpt.embedding.positions = "model.positions";
  gpt.embedding.max_position = 1024;
  gpt.ropes[0].interleaved = true;
  for (models::BlockDescription& block : gpt.blocks) {
    block.attention.norm_config = block.mlp.norm_config = {.kind = nn::NormKind::layer, .bias = true};
  }
  for (const nn::SavePolicy& policy : {kFull, kDelayed}) {
    const MeshCase on{.mesh = divided_mesh(), .policy = policy, .division = kSequence};
    out.push_back({.model = "gemma", .on = on, .whole = gemma});
    out.push_back({.model = "gpt", .on = on, .whole = gpt});
    out.push_back(
        {.model = "adapters", .on = on, .whole = testing::toy_with_adapters(0.25), .spec = train_own_adapters});
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(BlocksOfOtherFamilies, Tensor, ::testing::ValuesIn(blocks_of_other_families()), CaseName());

// Statistics of rows and columns, and norms of tensors, of which each tensor rank has a slice: the sums are over all
// slices, in the place of the global tensor, and checkpoints have each value once.
std::vector<TensorCase> optimizers_with_sums() {
  std::vector<TensorCase> out;
  const int world = the_world->size();
  if (world < 4) return out;  // two tensor ranks with two shards
  const auto by_rank_of_copies = [](const nn::Param& param) {
    nn::FlatSpec spec = spec_without_vocabulary(param);
    spec.group = testing::group_by_rank(param);
    return spec;
  };
  const comm::MeshSizes shards{.tensor = 2, .shard = world / 2}, context{.tensor = 2, .context = 2, .shard = world / 4};
  const models::ModelDescription whole = testing::toy_description();
  for (const comm::MeshSizes& mesh : {shards, context}) {
    out.push_back({.on = {.mesh = mesh},
                   .whole = whole,
                   .spec = nn::FlatSpecOf(by_rank_of_copies),
                   .optimizer = std::make_shared<testing::Adafactor>()});
  }
  out.push_back({.on = {.mesh = shards},
                 .whole = whole,
                 .spec = spec_without_vocabulary,
                 .optimizer = std::make_shared<testing::Lamb>()});
  return out;
}
INSTANTIATE_TEST_SUITE_P(OptimizersWithSums, Tensor, ::testing::ValuesIn(optimizers_with_sums()), CaseName());

// Each rank orthogonalizes some matrices, whose slices it gathers from all tensor ranks; with copies of key-value
// heads, too.
std::vector<TensorCase> optimizers_of_complete_matrices() {
  const int world = the_world->size();
  if (world < 2) return {};
  TensorCase c{.on = {.mesh = divided_mesh(), .division = kVocabulary},
               .whole = testing::toy_description(),
               .spec = matrices_of_blocks,
               .optimizer = std::make_shared<testing::Muon>()};
  std::vector<TensorCase> out{c};
  for (models::BlockDescription& block : c.whole.blocks) block.attention.kv_heads = 1;
  if (world >= 4) c.on.mesh = {.tensor = 4, .shard = world / 4};
  c.on.mesh = with_kv_copies(c.on.mesh, c.whole);
  c.on.division = kSequence;
  out.push_back(c);
  return out;
}
INSTANTIATE_TEST_SUITE_P(OptimizersOfCompleteMatrices, Tensor, ::testing::ValuesIn(optimizers_of_complete_matrices()),
                         CaseName());

// Meshes of a fused qkv, with the number of key-value heads that it has there.
std::vector<std::pair<comm::MeshSizes, std::int64_t>> meshes_of_fused_qkv() {
  const int world = the_world->size();
  if (world < 2 || world > 4) return {};  // long on eight ranks
  std::vector<std::pair<comm::MeshSizes, std::int64_t>> out{{divided_mesh(), 2}, {divided_mesh(), 1}};
  if (world == 4) out.push_back({{.tensor = 4}, 2});
  return out;
}

// A tensor rank has a range of rows of each of q, k and v of a tensor that is one in files, and of B of its adapters;
// of k and v with fewer heads than tensor ranks, copies.
std::vector<TensorCase> fused_qkv() {
  std::vector<TensorCase> out;
  for (const auto& [sizes, kv_heads] : meshes_of_fused_qkv()) {
    const models::ModelDescription plain = testing::with_fused_qkv(testing::toy_description(), kv_heads);
    const comm::MeshSizes mesh = with_kv_copies(sizes, plain);
    out.push_back({.model = "plain", .on = {.mesh = mesh, .policy = kFull, .division = kSequence}, .whole = plain});
    // The second adapter draws the same numbers, however many parameters the first one has.
    const auto add_adapted = [&](const std::string& name, double dropout, bool magnitudes, const nn::SavePolicy& policy,
                                 const Division& division) {
      TensorCase c{.model = name,
                   .on = {.mesh = mesh, .policy = policy, .division = division},
                   .whole = plain,
                   .spec = train_own_adapters};
      for (models::BlockDescription& block : c.whole.blocks) {
        nn::AttentionConfig& a = block.attention;
        a.adapters = {{a.fused, 3, 2.0, dropout, magnitudes},
                      {.target = a.fused, .rank = 2, .scale = 1.5, .dropout = dropout, .name = "more"}};
      }
      out.push_back(std::move(c));
    };
    add_adapted("adapters", 0, false, kDelayed, kVocabulary);
    add_adapted("dropout", 0.25, false, kFull, kSequence);
    add_adapted("dropout_and_magnitudes", 0.25, true, kDelayed, kSequence);
  }
  if (out.empty()) return out;
  out.push_back(
      {.model = "plain",
       .on = {.mesh = divided_mesh(), .policy = kFull, .division = {.vocabulary = true, .whole_attention = 0}},
       .whole = testing::with_fused_qkv(testing::toy_description())});
  return out;
}
INSTANTIATE_TEST_SUITE_P(FusedQkv, Tensor, ::testing::ValuesIn(fused_qkv()), CaseName());

// The tensor counts once, although it is in two flats.
TEST(Tensor, ParametersOfAFusedQkvAreCountedOnce) {
  for (const auto& [mesh, kv_heads] : meshes_of_fused_qkv()) {
    const models::ModelDescription plain =
        testing::divisible(testing::with_fused_qkv(testing::toy_description(), kv_heads));
    const models::Model first(part_of(plain, 0, mesh.tensor, kVocabulary), testing::own_spec);
    EXPECT_EQ(first.parameters(), models::Model(plain).parameters()) << testing::name_of(mesh);
  }
}

// Statistics of rows, columns and matrices, and complete matrices, are those of q, k and v of a fused tensor on every
// mesh, with copies of key-value heads in a flat of their own, too.
std::vector<TensorCase> optimizers_of_fused_qkv() {
  std::vector<TensorCase> out;
  const int world = the_world->size();
  if (world != 2 && world != 4) return out;
  if (kRankDevice != DeviceKind::cpu) return out;  // these optimizers compute on processors
  const auto adafactor = std::make_shared<testing::Adafactor>();
  const auto lamb = std::make_shared<testing::Lamb>();
  const auto muon = std::make_shared<testing::Muon>();
  for (const bool all : {false, true}) {
    if (all && world == 2) continue;
    const comm::MeshSizes mesh = all ? comm::MeshSizes{.tensor = world} : divided_mesh();
    TensorCase c{.whole = testing::with_fused_qkv(testing::toy_description(), mesh.shard > 1 ? 2 : world / 2)};
    c.on = {.mesh = with_kv_copies(mesh, c.whole), .division = kSequence};
    c.spec = by_rank;
    c.optimizer = adafactor;
    out.push_back(c);
    c.on.division = kVocabulary;
    c.spec = testing::own_spec;
    c.optimizer = lamb;
    out.push_back(c);
    c.spec = matrices_of_blocks;
    c.optimizer = muon;
    out.push_back(c);
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(OptimizersOfFusedQkv, Tensor, ::testing::ValuesIn(optimizers_of_fused_qkv()), CaseName());

}  // namespace tensor_test
}  // namespace hawser
