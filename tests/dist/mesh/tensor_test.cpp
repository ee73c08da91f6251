// Slices of tensors over ranks, with a filling of the redistribute seam that all-reduces: attention heads and the MLP's
// inner width are cut over two tensor ranks, all other parameters are copies. The real layers run through plan,
// checker, executor and session; each element of a copy is reduced, counted in the norm and saved once.
#include "delayed_scaling.h"
#include "models/lora.h"
#include "models/weights.h"
#include "tensor_case.h"
#include "toy_muon.h"
#include "toy_optimizers.h"

namespace hawser {
namespace tensor_test {

using testing::divided_mesh;
using testing::Division;
using testing::expect_divided;
using testing::expect_like_one_rank;
using testing::half_of;
using testing::kSequence;
using testing::kVocabulary;
using testing::part_of;
using testing::Tensors;
using testing::train;
using testing::Trained;

// Embedding and head are not cut.
nn::FlatSpec spec_of(const nn::Param& param) {
  nn::FlatSpec spec = param.flat;
  if (param.name.find("layers.") == std::string::npos) spec.domain = Domain::replicated;
  return spec;
}

TEST(Tensor, SlicesAndCopiesTrainLikeOneRank) {
  const int world = the_world->size();
  if (world < 4) GTEST_SKIP() << "two tensor ranks with two shards need four ranks";
  for (const bool tied : {true, false}) {
    const models::ModelDescription whole = testing::toy_description(tied);
    expect_like_one_rank(whole, spec_of, {.tensor = 2, .shard = world / 2});
    expect_like_one_rank(whole, spec_of, {.tensor = 2, .context = 2, .shard = world / 4});
    if (world == 8) expect_like_one_rank(whole, spec_of, {.tensor = 2, .shard = 2, .replicate = 2});
  }
  // Each tensor rank has the full gradient of the norm, the sum of both layers', as a copy.
  models::ModelDescription one_norm = testing::toy_description();
  for (models::BlockDescription& block : one_norm.blocks) {
    block.attention.norm_config = block.mlp.norm_config = {.kind = nn::NormKind::layer, .bias = true};
    block.mlp.norm = block.attention.norm;
    block.residual = models::Residual::parallel_one_norm;
  }
  expect_like_one_rank(one_norm, spec_of, {.tensor = 2, .shard = world / 2}, {.checkpointing = Checkpointing::full});
}

TEST(Tensor, SequenceParallelTrainsLikeOneRankUnderEveryPolicy) {
  bool tied = false;
  for (const nn::SavePolicy& policy : nn::testing::all_policies()) {
    // Eight ranks share the cores of four: one policy, with weight gradients at once and delayed.
    if (the_world->size() == 8 && policy.checkpointing != Checkpointing::projections) continue;
    tied = !tied;
    expect_divided(testing::toy_description(tied), divided_mesh(), policy, kSequence);
  }
}

TEST(Tensor, VocabularyAndSequenceParallelTrainLikeOneRankOnEveryMesh) {
  const int world = the_world->size(), tensor = std::min(world, 2);
  const nn::SavePolicy none, delayed{.checkpointing = Checkpointing::selective, .delay_weight_gradients = true};
  for (const bool tied : {true, false}) {
    const models::ModelDescription whole = testing::toy_description(tied);
    expect_divided(whole, {.tensor = tensor, .shard = 1, .replicate = world / tensor}, none, kVocabulary);
    if (world < 4) continue;
    expect_divided(whole, {.tensor = 2, .context = 2, .shard = world / 4}, delayed, kSequence);
    if (world == 8) expect_divided(whole, {.tensor = 2, .shard = 2, .replicate = 2}, none, kSequence);
  }
}

// A vocabulary that does not divide is padded, so that all tensor ranks have buffers of equal sizes and the first rank
// plans for them. Padding is in no sum, norm, statistic of rows or checkpoint.
TEST(Tensor, OnePlanServesThePartsOfAPaddedVocabulary) {
  const int world = the_world->size();
  if (world < 2) GTEST_SKIP() << "needs two tensor ranks";
  const auto own = [](const nn::Param& param) { return param.flat; };
  for (const bool tied : {true, false}) {
    models::ModelDescription whole = testing::toy_description(tied);
    for (models::BlockDescription& block : whole.blocks) block.mlp.inner = 38;
    for (Division division : {kVocabulary, kSequence}) {
      division.one_plan = true;
      expect_like_one_rank(whole, own, divided_mesh(), {.checkpointing = Checkpointing::full}, testing::toy_adamw(),
                           division);
    }
    if (kRankDevice != DeviceKind::cpu) continue;  // this optimizer computes on processors
    const auto by_rank = [](const nn::Param& param) {
      nn::FlatSpec spec = param.flat;
      spec.group = testing::group_by_rank(param);
      return spec;
    };
    Division division = kVocabulary;
    division.one_plan = true;
    expect_like_one_rank(whole, by_rank, divided_mesh(), {}, std::make_shared<testing::Adafactor>(), division);
  }
}

// Two or four tensor ranks with one or two key-value heads: copies of K and V have equal values, gradients that are the
// sum over them, and count once in the norm and in checkpoints; weights, biases, norms of heads and adapters.
TEST(Tensor, MoreRanksThanKeyValueHeadsTrainLikeOneRank) {
  const int world = the_world->size();
  if (world < 2) GTEST_SKIP() << "needs two tensor ranks";
  const auto own = [](const nn::Param& param) { return param.flat; };
  const auto adapters_only = [](const nn::Param& param) {
    nn::FlatSpec spec = param.flat;
    spec.trainable = param.name.find("lora_") != std::string::npos;
    return spec;
  };
  const nn::SavePolicy full{.checkpointing = Checkpointing::full}, delayed{.delay_weight_gradients = true};
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
  const auto expect = [&](comm::MeshSizes mesh, std::int64_t kv_heads) {
    const models::ModelDescription plain = with_kv_heads(testing::toy_description(), kv_heads, false),
                                   more = with_kv_heads(testing::toy_description(), kv_heads, true);
    mesh.kv_copies = testing::kv_copies(plain, mesh.tensor);
    expect_divided(plain, mesh, {}, kVocabulary, own);
    expect_divided(more, mesh, full, kSequence, own);
    expect_divided(more, mesh, delayed, kSequence, own);
    expect_divided(with_kv_heads(testing::toy_with_adapters(0.25), kv_heads, false), mesh, full, kSequence,
                   adapters_only);
  };
  expect({.tensor = 2, .shard = world / 2}, 1);
  if (world < 4) return;
  expect({.tensor = 2, .context = 2, .shard = world / 4}, 1);
  expect({.tensor = 4, .shard = world / 4}, 2);
}

// Soft-capped scores, and ALiBi and dropout with the slopes and random numbers of each rank's heads, whose number is no
// power of two: with copies of a key-value head, with attention that each tensor rank has all of, and over context
// ranks.
TEST(Tensor, SlopesAndRandomNumbersAreThoseOfTheRanksHeads) {
  const int world = the_world->size();
  if (world < 2) GTEST_SKIP() << "needs two tensor ranks";
  if (world > 4) GTEST_SKIP() << "long on eight ranks; mesh_2 and mesh_4 run it";
  const auto expect = [&](comm::MeshSizes mesh, std::int64_t heads, std::int64_t kv_heads, const Division& division) {
    models::ModelDescription d = testing::toy_description();
    for (models::BlockDescription& block : d.blocks) {
      block.attention.heads = heads;
      block.attention.kv_heads = kv_heads;
      block.attention.softcap = 0.5;
      block.attention.alibi = true;
      block.attention.alibi_scale = &block == &d.blocks[0] ? 0.5 : 2;
      block.attention.dropout = 0.2;
    }
    mesh.kv_copies = testing::kv_copies(d, mesh.tensor);
    expect_divided(d, mesh, {.checkpointing = Checkpointing::full}, division);
  };
  expect({.tensor = 2, .shard = world / 2}, 6, 1, kVocabulary);
  Division whole = kSequence;
  whole.whole_attention = 0;
  expect({.tensor = 2, .shard = world / 2}, 6, 2, whole);
  if (world < 4) return;
  expect({.tensor = 2, .context = 2, .shard = world / 4}, 6, 2, kSequence);
  expect({.tensor = 4, .shard = world / 4}, 12, 2, kSequence);
}

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

// Layers that each tensor rank has all of, among others that are sliced: attention of the first block, the MLP of the
// second, or both.
TEST(Tensor, LayersThatAreNotSlicedTrainLikeOneRank) {
  const int world = the_world->size();
  if (world < 2) GTEST_SKIP() << "needs two tensor ranks";
  if (world > 4) GTEST_SKIP() << "long on eight ranks; mesh_2 and mesh_4 run it";
  const auto own = [](const nn::Param& param) { return param.flat; };
  const auto adapters_only = [](const nn::Param& param) {
    nn::FlatSpec spec = param.flat;
    spec.trainable = param.name.find("lora_") != std::string::npos;
    return spec;
  };
  const nn::SavePolicy none, full{.checkpointing = Checkpointing::full},
      selective{.checkpointing = Checkpointing::selective, .delay_weight_gradients = true};
  models::ModelDescription plain = testing::toy_description(), norms = testing::toy_description(false);
  add_sandwich_norms(norms);
  for (const int tensor : {2, 4}) {
    if (world < tensor) continue;
    comm::MeshSizes mesh{.tensor = tensor, .shard = world / tensor, .kv_copies = testing::kv_copies(plain, tensor)};
    for (Division division : {kVocabulary, kSequence}) {
      division.whole_attention = 0;
      expect_divided(norms, mesh, full, division, own);
      division.whole_mlp = 1;
      expect_divided(plain, mesh, none, division, own);
      expect_divided(norms, mesh, selective, division, own);
      expect_divided(testing::toy_with_adapters(0.25), mesh, full, division, adapters_only);
      expect_divided(testing::toy_with_adapters(0.25, true), mesh, selective, division, adapters_only);
      division.whole_attention = -1;
      expect_divided(plain, mesh, selective, division, own);
    }
  }
  if (world < 4) return;
  Division division = kSequence;
  division.whole_attention = 1;
  expect_divided(plain, {.tensor = 2, .context = 2, .shard = world / 4}, selective, division, own);
}

// With sequence parallelism a complete MLP has as many FLOPs as a slice, on fewer rows; without it, as on one rank. Its
// weights are sharded over the tensor ranks, and complete where they are gathered.
TEST(Tensor, PlansCountWhatARankHasOfALayer) {
  if (the_world->size() > 1) GTEST_SKIP() << "one rank is enough";
  models::ModelDescription whole = testing::toy_description();
  for (models::BlockDescription& block : whole.blocks) block.mlp.inner = 38;
  const auto plan_of = [&](const comm::MeshSizes& mesh, const Division& division) {
    const nn::FlatSpecOf own = [](const nn::Param& param) { return param.flat; };
    const models::Model model(mesh.tensor == 1 ? whole : part_of(whole, 0, mesh.tensor, division),
                              division.sequence_parallel ? nn::with_sequence_parallelism(own) : own);
    plan::LayoutChoices layout = testing::toy_layout(mesh, model);
    layout.sequence_parallel = division.sequence_parallel;
    layout.replace_seams = [&](nn::Seams& seams, comm::Mesh& groups) {
      seams.tensor_reduce = std::make_shared<testing::TensorSums>(groups.tensor());
      if (division.sequence_parallel) {
        seams.redistribute = std::make_shared<testing::SequenceParallel>(groups.tensor());
      } else {
        seams.redistribute = std::make_shared<testing::TensorParallel>(groups.tensor());
      }
    };
    const plan::RankPlan plan = plan::plan_rank(model, plan::derive(layout, model), step::Purpose::train, 0);
    return std::pair(plan::costs_of(plan, model, plan::derive(layout, model)), plan.parameter_bytes);
  };
  const auto with_whole_mlp = [](Division division) {
    division.whole_mlp = 1;
    return division;
  };
  const auto [sliced, sliced_bytes] = plan_of({.tensor = 2}, kSequence);
  const auto [complete, bytes] = plan_of({.tensor = 2}, with_whole_mlp(kSequence));
  EXPECT_DOUBLE_EQ(complete.model_flops, sliced.model_flops);
  EXPECT_NEAR(complete.flops, sliced.flops, 1e-3 * sliced.flops);
  EXPECT_NEAR(static_cast<double>(bytes), static_cast<double>(sliced_bytes), 1024);  // padding
  EXPECT_GT(complete.total_bytes, sliced.total_bytes);
  const auto all_rows = [&](const Division& division) { return plan_of({.tensor = 2}, division).first.model_flops; };
  const double one = plan_of({}, {}).first.model_flops, half = all_rows(kVocabulary),
               with_mlp = all_rows(with_whole_mlp(kVocabulary));
  const nn::MlpConfig& mlp = whole.blocks[1].mlp;
  const models::Model all(whole);
  const double rows = static_cast<double>(plan::derive(testing::toy_layout({}, all), all).bounds.rows);
  EXPECT_NEAR(with_mlp - half, 3 * 2 * rows * static_cast<double>(mlp.width * 3 * mlp.inner) / 2, 1e-6 * one);
}

// Norms after layers and of heads; learned positions, layer norms with biases, interleaved rotation; adapters with
// dropout.
TEST(Tensor, SequenceParallelBlocksOfOtherFamiliesTrainLikeOneRank) {
  const comm::MeshSizes mesh = divided_mesh();
  const nn::SavePolicy full{.checkpointing = Checkpointing::full}, delayed{.delay_weight_gradients = true};
  models::ModelDescription gemma = testing::toy_description(), gpt = testing::toy_description(false);
  add_sandwich_norms(gemma);
  gpt.embedding.positions = "model.positions";
  gpt.embedding.max_position = 1024;
  gpt.ropes[0].interleaved = true;
  for (models::BlockDescription& block : gpt.blocks) {
    block.attention.norm_config = block.mlp.norm_config = {.kind = nn::NormKind::layer, .bias = true};
  }
  for (const nn::SavePolicy& policy : {full, delayed}) {
    expect_divided(gemma, mesh, policy, kSequence);
    expect_divided(gpt, mesh, policy, kSequence);
    expect_divided(testing::toy_with_adapters(0.25), mesh, policy, kSequence, [](const nn::Param& param) {
      nn::FlatSpec own = param.flat;
      own.trainable = param.name.find("lora_") != std::string::npos;
      return own;
    });
  }
}

// Statistics of rows and columns, and norms of tensors, of which each tensor rank has a slice: the sums are over all
// slices, in the place of the global tensor, and checkpoints have each value once.
TEST(Tensor, OptimizersWithSumsTrainLikeOneRank) {
  const int world = the_world->size();
  if (world < 4) GTEST_SKIP() << "two tensor ranks with two shards need four ranks";
  const auto by_rank = [](const nn::Param& param) {
    nn::FlatSpec spec = spec_of(param);
    spec.group = testing::group_by_rank(param);
    return spec;
  };
  const models::ModelDescription whole = testing::toy_description();
  const auto adafactor = std::make_shared<testing::Adafactor>();
  expect_like_one_rank(whole, by_rank, {.tensor = 2, .shard = world / 2}, {}, adafactor);
  expect_like_one_rank(whole, by_rank, {.tensor = 2, .context = 2, .shard = world / 4}, {}, adafactor);
  expect_like_one_rank(whole, spec_of, {.tensor = 2, .shard = world / 2}, {}, std::make_shared<testing::Lamb>());
}

// Each rank orthogonalizes some matrices, whose slices it gathers from all tensor ranks; with copies of key-value
// heads, too.
TEST(Tensor, OptimizersOfCompleteMatricesTrainLikeOneRank) {
  const int world = the_world->size();
  if (world < 2) GTEST_SKIP() << "needs two tensor ranks";
  const auto spec = [](const nn::Param& param) {
    nn::FlatSpec own = param.flat;
    own.group = param.name.find("layers.") != std::string::npos && param.shape.rank() == 2 ? 1 : 0;
    return own;
  };
  models::ModelDescription whole = testing::toy_description();
  for (models::BlockDescription& block : whole.blocks) block.mlp.inner = 40;  // equal slices
  const auto muon = std::make_shared<testing::Muon>();
  expect_like_one_rank(whole, spec, divided_mesh(), {}, muon, kVocabulary);
  for (models::BlockDescription& block : whole.blocks) block.attention.kv_heads = 1;
  comm::MeshSizes mesh = divided_mesh();
  if (world >= 4) mesh = {.tensor = 4, .shard = world / 4};
  mesh.kv_copies = testing::kv_copies(whole, mesh.tensor);
  expect_like_one_rank(whole, spec, mesh, {}, muon, kSequence);
}

// A frozen base with trainable adapters, whose dropout draws the same numbers on every mesh and in every pass:
// recomputed ones, delayed weight gradients, with two micro-batches in flight. A of a column-parallel Linear and B of a
// row-parallel one are copies with partial gradients.
TEST(Tensor, AdaptersTrainLikeOneRank) {
  const int world = the_world->size();
  const models::ModelDescription whole = testing::toy_with_adapters(0.25);
  const auto spec = [](const nn::Param& param) {
    nn::FlatSpec own = spec_of(param);
    own.trainable = param.name.find("lora_") != std::string::npos;
    return own;
  };
  const nn::SavePolicy recomputed{.checkpointing = Checkpointing::full}, delayed{.delay_weight_gradients = true};
  expect_like_one_rank(whole, spec, {.shard = world}, recomputed);
  expect_like_one_rank(whole, spec, {.shard = world}, delayed);
  if (world >= 2) expect_like_one_rank(whole, spec, {.context = 2, .shard = 1, .replicate = world / 2});
  if (world < 4) return;
  expect_like_one_rank(whole, spec, {.tensor = 2, .shard = world / 2}, recomputed);
  expect_like_one_rank(whole, spec, {.tensor = 2, .context = 2, .shard = world / 4}, delayed);
}

// The base in NF4: a tensor rank's rows and columns are whole blocks, which have the bits of the complete tensor's.
TEST(Tensor, AdaptersOnBlocksTrainLikeOneRank) {
  const int world = the_world->size();
  if (world < 2 || world > 4) GTEST_SKIP() << "two tensor ranks";
  models::ModelDescription whole = testing::toy_of_nf4_blocks();
  testing::add_toy_adapters(whole, 0.25);
  const auto spec = [](const nn::Param& param) {
    nn::FlatSpec own = param.flat;
    own.trainable = param.name.find("lora_") != std::string::npos;
    return own;
  };
  const nn::FlatSpecOf packed = nn::with_nf4_weights(spec, [](int) { return true; });
  expect_divided(whole, divided_mesh(), {.checkpointing = Checkpointing::full}, kSequence, packed);
  expect_divided(whole, divided_mesh(), {.delay_weight_gradients = true}, kVocabulary, packed);
}

// A tensor rank has a range of rows of each of q, k and v of a tensor that is one in files, and of B of its adapters;
// of k and v with fewer heads than tensor ranks, copies.
TEST(Tensor, AFusedQkvTrainsLikeOneRank) {
  const int world = the_world->size();
  if (world < 2) GTEST_SKIP() << "needs two tensor ranks";
  if (world > 4) GTEST_SKIP() << "long on eight ranks; mesh_2 and mesh_4 run it";
  const nn::SavePolicy full{.checkpointing = Checkpointing::full}, delayed{.delay_weight_gradients = true};
  const auto adapters_only = [](const nn::Param& param) {
    nn::FlatSpec own = param.flat;
    own.trainable = param.name.find("lora_") != std::string::npos;
    return own;
  };
  const auto expect = [&](comm::MeshSizes mesh, std::int64_t kv_heads) {
    const models::ModelDescription plain = testing::with_fused_qkv(testing::toy_description(), kv_heads);
    mesh.kv_copies = testing::kv_copies(plain, mesh.tensor);
    // The tensor counts once, although it is in two flats.
    const models::Model first(part_of(plain, 0, mesh.tensor, kVocabulary),
                              nn::FlatSpecOf([](const nn::Param& param) { return param.flat; }));
    EXPECT_EQ(first.parameters(), models::Model(plain).parameters());
    expect_divided(plain, mesh, full, kSequence);
    // The second adapter draws the same numbers, however many parameters the first one has.
    const auto adapted = [&](double dropout, bool magnitudes) {
      models::ModelDescription d = plain;
      for (models::BlockDescription& block : d.blocks) {
        nn::AttentionConfig& a = block.attention;
        a.adapters = {{a.fused, 3, 2.0, dropout, magnitudes},
                      {.target = a.fused, .rank = 2, .scale = 1.5, .dropout = dropout, .name = "more"}};
      }
      return d;
    };
    expect_divided(adapted(0, false), mesh, delayed, kVocabulary, adapters_only);
    expect_divided(adapted(0.25, false), mesh, full, kSequence, adapters_only);
    expect_divided(adapted(0.25, true), mesh, delayed, kSequence, adapters_only);
  };
  expect(divided_mesh(), 2);
  expect(divided_mesh(), 1);
  if (world == 4) expect({.tensor = 4}, 2);
  Division whole = kVocabulary;
  whole.whole_attention = 0;
  expect_divided(testing::with_fused_qkv(testing::toy_description()), divided_mesh(), full, whole);
}

// Statistics of rows, columns and matrices, and complete matrices, are those of q, k and v of a fused tensor on every
// mesh, with copies of key-value heads in a flat of their own, too.
TEST(Tensor, OptimizersOfAFusedQkvTrainLikeOneRank) {
  const int world = the_world->size();
  if (world != 2 && world != 4) GTEST_SKIP() << "mesh_2 and mesh_4 run it";
  if (kRankDevice != DeviceKind::cpu) GTEST_SKIP() << "these optimizers compute on processors";
  const auto own = [](const nn::Param& param) { return param.flat; };
  const auto by_rank = [](const nn::Param& param) {
    nn::FlatSpec spec = param.flat;
    spec.group = testing::group_by_rank(param);
    return spec;
  };
  const auto blocks = [](const nn::Param& param) {
    nn::FlatSpec spec = param.flat;
    spec.group = param.name.find("layers.") != std::string::npos && param.shape.rank() == 2 ? 1 : 0;
    return spec;
  };
  for (const comm::MeshSizes& sizes : {divided_mesh(), comm::MeshSizes{.tensor = world}}) {
    comm::MeshSizes mesh = sizes;
    const std::int64_t kv_heads = sizes.shard > 1 ? 2 : world / 2;
    models::ModelDescription whole = testing::with_fused_qkv(testing::toy_description(), kv_heads);
    for (models::BlockDescription& block : whole.blocks) block.mlp.inner = 40;  // equal slices
    mesh.kv_copies = testing::kv_copies(whole, mesh.tensor);
    expect_like_one_rank(whole, by_rank, mesh, {}, std::make_shared<testing::Adafactor>(), kSequence);
    expect_like_one_rank(whole, own, mesh, {}, std::make_shared<testing::Lamb>(), kVocabulary);
    expect_like_one_rank(whole, blocks, mesh, {}, std::make_shared<testing::Muon>(), kVocabulary);
  }
}

// What freezes the base leaves domains and partial gradients as the layers of tensor ranks need them: norms and the
// head train beside adapters of all kinds.
TEST(Tensor, TheSpecOfAdaptersTrainsLikeOneRank) {
  const int world = the_world->size();
  if (world < 2) GTEST_SKIP() << "needs two tensor ranks";
  const nn::FlatSpecOf spec = models::train_lora([](const nn::Param& param) { return param.flat; },
                                                 {"input_layernorm", "lm_head", "model.norm"});
  models::ModelDescription whole = testing::toy_description(false);
  Problems problems;
  models::add_lora(whole, {.rank = 3, .alpha = 6, .dropout = 0.25}, {}, problems);
  EXPECT_TRUE(problems.empty()) << problems.lines();
  expect_divided(whole, divided_mesh(), {.checkpointing = Checkpointing::full}, kVocabulary, spec);
  for (models::BlockDescription& block : whole.blocks) block.attention.kv_heads = 1;
  comm::MeshSizes copies = divided_mesh();
  copies.kv_copies = testing::kv_copies(whole, copies.tensor);
  expect_divided(whole, copies, {.delay_weight_gradients = true}, kSequence, spec);
}

// The scale of a sliced weight is that of the global tensor, equal on its tensor ranks and saved once; so are the
// scales of x and dy, whose slices have other maxima.
TEST(Tensor, RanksOfSlicesHaveTheScalesOfOneRank) {
  const int world = the_world->size();
  if (world < 4) GTEST_SKIP() << "two tensor ranks with two shards need four ranks";
  const auto with_scales = [](nn::FlatSpec spec, const nn::Param& param) {
    if (param.name.ends_with("_proj.weight")) spec.scaled = true;
    return spec;
  };
  const auto quantize = [](plan::LayoutChoices& layout) {
    layout.quantizer = std::make_shared<testing::DelayedScaling>();
    for (nn::SavePolicy& policy : layout.policies) {
      for (int site = 0; site < static_cast<int>(nn::Site::logits); ++site) {
        policy.formats[static_cast<std::size_t>(site)] = LinearFormat::fp8_delayed;
      }
    }
  };
  const models::ModelDescription whole = testing::toy_description();
  const comm::MeshSizes mesh{.tensor = 2, .shard = world / 2};
  const int part = comm::coordinate_of(the_world->rank().value(), mesh).tensor;
  for (const Division& division : {Division{}, Division{.whole_mlp = 1}}) {
    const models::Model model(half_of(whole, part, division),
                              [&](const nn::Param& param) { return with_scales(spec_of(param), param); });
    plan::LayoutChoices layout = testing::toy_layout(mesh, model);
    layout.replace_seams = [](nn::Seams& seams, comm::Mesh& groups) {
      seams.redistribute = std::make_shared<testing::TensorParallel>(groups.tensor());
    };
    quantize(layout);
    const Trained cut = train(model, layout, {.inputs = {0}});

    const models::Model one(whole,
                            [&](const nn::Param& param) { return with_scales(nn::common_domain(param), param); });
    plan::LayoutChoices alone = testing::toy_layout({}, one);
    quantize(alone);
    const Trained of_one = testing::on_one_rank([&] {
      const auto self = comm::make_self_mesh();
      const testing::ToySteps steps(one, alone, self->coordinate(), 2LL * layout.data_ranks() * 2);
      const auto device = rank_device();
      engine::Session session(one, plan::derive(alone, one), *device, *self, {step::Purpose::train});
      session.initialise(3);
      Trained trained{.before = testing::states_of(session)};
      testing::take_steps(session, steps, {.inputs = {0}}, trained);
      trained.after = testing::states_of(session);
      return trained;
    });
    EXPECT_TRUE(cut.before == of_one.before);  // with the scales of the weights
    int compared = 0;
    for (const auto& [name, values] : of_one.after) {
      if (!name.starts_with("quantization/amax_history/")) continue;
      EXPECT_NEAR(cut.after.at(name).front(), values.front(), 2e-2 * values.front()) << name;
      compared += values.front() > 0 ? 1 : 0;
    }
    EXPECT_GE(compared, 8 + 2);  // every x; a small dy is 0 with the first scale, and all dy before it
  }
}

// The same with magnitudes of rows (DoRA): those of a column-parallel Linear are cut like its rows, those of a
// row-parallel one are copies with partial gradients, and its norms are sums over the tensor ranks. Magnitudes start
// with the norms of rows that several ranks have, and that several shards cut.
TEST(Tensor, MagnitudesTrainLikeOneRank) {
  const int world = the_world->size();
  const auto spec = [](const nn::Param& param) {
    nn::FlatSpec own = spec_of(param);
    own.trainable = param.name.find("lora_") != std::string::npos;
    return own;
  };
  const nn::SavePolicy recomputed{.checkpointing = Checkpointing::full}, delayed{.delay_weight_gradients = true};
  const models::ModelDescription whole = testing::toy_with_adapters(0, true),
                                 drops = testing::toy_with_adapters(0.25, true);
  expect_like_one_rank(whole, spec, {.shard = world}, recomputed);
  expect_like_one_rank(drops, spec, {.shard = world}, delayed);
  if (world < 4) return;
  expect_like_one_rank(whole, spec, {.tensor = 2, .shard = world / 2}, delayed);
  expect_like_one_rank(drops, spec, {.tensor = 2, .context = 2, .shard = world / 4}, recomputed);
}

// The bytes that a plan saves for backward, in all micro-batches: with a frozen base less than with everything
// trainable, by what only frozen weights' gradients read, and the executor runs in that plan.
TEST(Tensor, AFrozenBaseSavesLess) {
  if (the_world->size() > 1) GTEST_SKIP() << "one rank is enough";
  models::ModelDescription d = testing::toy_description();
  for (models::BlockDescription& block : d.blocks) block.attention.adapters = {{block.attention.q, 3, 2.0}};
  const auto saved_bytes = [&](const models::Model& model) {
    plan::LayoutChoices layout = testing::toy_layout({}, model);
    const plan::RankPlan plan = plan::plan_rank(model, plan::derive(layout, model), step::Purpose::train, 0);
    std::int64_t bytes = 0;
    for (const auto& [key, index] : plan.buffers.index) {
      if (key.role == step::Role::saved) bytes += plan.buffers.buffers[static_cast<std::size_t>(index)].bytes;
    }
    return bytes;
  };
  const models::Model all(d), frozen(d, [](const nn::Param&param) {
    nn::FlatSpec own = nn::common_domain(param);
    own.trainable = param.name.find("lora_") != std::string::npos;
    return own;
  });
  const plan::Layout layout = plan::derive(testing::toy_layout({}, all), all);
  std::int64_t less = 0;
  for (const models::BlockDescription& block : d.blocks) {  // float32: the MLP's normed rows and inner activations
    for (const std::int64_t columns : {block.mlp.width, block.mlp.inner}) {
      less += layout.bounds.rows * columns * 4;
    }
  }
  std::printf("saved bytes: %lld, with a frozen base %lld\n", static_cast<long long>(saved_bytes(all)),
              static_cast<long long>(saved_bytes(frozen)));
  EXPECT_EQ(saved_bytes(all) - saved_bytes(frozen), less);
  EXPECT_GT(saved_bytes(frozen), 0);
}

// What the mesh test compares would differ with other random numbers.
TEST(Tensor, DropoutFollowsTheSeed) {
  if (the_world->size() > 1) GTEST_SKIP() << "one rank is enough";
  const models::Model model(testing::toy_with_adapters(0.25)), none(testing::toy_with_adapters(0));
  plan::LayoutChoices layout = testing::toy_layout({}, model);
  const Trained first = train(model, layout), again = train(model, layout), without = train(none, layout);
  layout.seed = 1;
  const Trained other = train(model, layout);
  EXPECT_TRUE(first.after == again.after);
  EXPECT_GT(testing::difference(other.after, first.after), 1e-4);
  EXPECT_GT(testing::difference(without.after, first.after), 1e-4);
}

}  // namespace tensor_test
}  // namespace hawser
