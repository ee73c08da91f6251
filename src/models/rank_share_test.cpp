// Which part of a model a tensor rank has, and which degrees are rejected, with those that work.
#include "models/rank_share.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "models/testing/model_files.h"

namespace hawser::models {
namespace rank_share_test {

ModelDescription description_of(std::int64_t heads, std::int64_t kv_heads, std::int64_t inner,
                                std::int64_t vocabulary = 67) {
  Problems problems;
  ModelDescription d = read_description(golden(golden_names().front()), problems);
  EXPECT_EQ(problems.lines(), "");
  for (BlockDescription& block : d.blocks) {
    block.attention.heads = heads;
    block.attention.kv_heads = kv_heads;
    block.mlp.inner = inner;
  }
  d.embedding.vocabulary = d.head.vocabulary = vocabulary;
  return d;
}

RankShare share_of(int index, int count) {
  return {.tensor = {.index = index, .count = count}};
}

std::string rejection(const ModelDescription& d, int ranks, const TensorModules& modules = {}) {
  Problems problems;
  RankShare share = share_of(0, ranks);
  share.modules = modules;
  check_share(d, share, {.file = "r.yaml", .at = "degree", .hint = "degree: "}, problems);
  return problems.lines();
}

TEST(RankShare, DividesHeadsChannelsAndRowsOfTheVocabulary) {
  const ModelDescription d = rank_description(description_of(4, 2, 24), share_of(1, 2));
  const nn::AttentionConfig& attention = d.blocks.front().attention;
  EXPECT_EQ(attention.heads, 2);
  EXPECT_EQ(attention.heads_slice.begin, 2);
  EXPECT_EQ(attention.heads_slice.total, 4);
  EXPECT_EQ(attention.kv_heads, 1);
  EXPECT_EQ(attention.kv_heads_slice.begin, 1);
  EXPECT_EQ(attention.kv_copies, 1);
  EXPECT_EQ(d.blocks.front().mlp.inner, 12);
  EXPECT_EQ(d.blocks.front().mlp.inner_slice.begin, 12);
  // 34 rows each would do; GEMMs are fast with a multiple of 16.
  EXPECT_EQ(d.embedding.vocabulary, 48);
  EXPECT_EQ(d.head.vocabulary, 48);
  EXPECT_EQ(d.head.vocabulary_slice.begin, 48);
  EXPECT_EQ(d.head.vocabulary_slice.total, 67);
  // No rank may have padding alone: of 16 rows each, the last of eight would begin at 112.
  EXPECT_EQ(rank_description(description_of(8, 8, 24), share_of(7, 8)).embedding.vocabulary, 9);
}

TEST(RankShare, FewerKeyValueHeadsThanRanksAreOnSeveral) {
  for (const int rank : {0, 1, 2, 3}) {
    const ModelDescription d = rank_description(description_of(4, 2, 24), share_of(rank, 4));
    const nn::AttentionConfig& attention = d.blocks.front().attention;
    EXPECT_EQ(attention.heads_slice.begin, rank);
    EXPECT_EQ(attention.kv_heads, 1);
    EXPECT_EQ(attention.kv_heads_slice.begin, rank / 2);
    EXPECT_EQ(attention.kv_copies, 2);
  }
}

TEST(RankShare, LeavesOtherModulesComplete) {
  RankShare share = share_of(1, 2);
  share.modules = {.attention = false, .mlp = true, .vocabulary = false};
  const ModelDescription d = rank_description(description_of(3, 1, 24), share);
  EXPECT_FALSE(d.blocks.front().attention.sliced);
  EXPECT_EQ(d.blocks.front().attention.heads, 3);
  EXPECT_TRUE(d.blocks.front().mlp.sliced);
  EXPECT_EQ(d.blocks.front().mlp.inner, 12);
  EXPECT_EQ(d.embedding.vocabulary, 67);
  EXPECT_FALSE(d.embedding.vocabulary_slice.sliced());
}

TEST(RankShare, ParametersHaveTheDomainsOfTheirLayers) {
  const ModelDescription whole = description_of(4, 2, 24);
  const Model one(whole), part(whole, nn::common_domain, share_of(0, 2));
  const auto domains = [](const Model& model) {
    std::set<Domain> out;
    for (const nn::Flat& flat : model.flats()) out.insert(flat.spec().domain);
    return out;
  };
  EXPECT_EQ(domains(one), std::set{Domain::sliced});
  EXPECT_EQ(domains(part), (std::set{Domain::sliced, Domain::replicated}));
  EXPECT_EQ(part.parameters(), one.parameters());
  EXPECT_EQ(part.on_rank({}, 1)->blocks(), 1);
  EXPECT_EQ(part.on_rank({}, part.blocks())->description().blocks.front().attention.heads, 4);
  const auto partial = [&](bool sequence_parallel) {
    RankShare share = share_of(0, 2);
    share.sequence_parallel = sequence_parallel;
    const Model model(whole, nn::common_domain, share);
    return std::ranges::count_if(model.flats(), [](const nn::Flat& flat) { return flat.spec().partial_gradient; });
  };
  EXPECT_GT(partial(true), partial(false));
}

TEST(RankShare, RejectsSizesThatDoNotDivideWithTheNearestDegreesThatDo) {
  const ModelDescription d = description_of(12, 4, 48);
  for (const int works : {1, 2, 4, 12}) EXPECT_EQ(rejection(d, works), "");
  EXPECT_EQ(rejection(d, 5),
            "r.yaml: tensor ranks do not divide the attention heads (expected a divisor of 12 heads, got 5) at degree; "
            "try degree: 4 or 12");
  EXPECT_EQ(rejection(d, 3),
            "r.yaml: tensor ranks do not divide the key-value heads (expected a divisor or a multiple of 4 key-value "
            "heads, got 3) at degree; try degree: 2 or 4");
  EXPECT_EQ(rejection(description_of(8, 8, 12), 8),
            "r.yaml: tensor ranks do not divide the inner width of the MLP (expected a divisor of 12, got 8) at "
            "degree; try degree: 4");
  EXPECT_EQ(rejection(description_of(8, 8, 12), 8, {.mlp = false}), "");
  EXPECT_EQ(rejection(d, 24, {.attention = false, .mlp = true, .vocabulary = false}), "");
  EXPECT_EQ(rejection(description_of(64, 64, 64, 9), 8, {.attention = false, .mlp = false}),
            "r.yaml: too many tensor ranks for the vocabulary (expected rows for each rank, of 9, got 8) at degree");
}

TEST(RankShare, RejectsKeyValueHeadsThatAreCopiesInSomeBlocksOnly) {
  ModelDescription d = description_of(4, 4, 24);
  d.blocks.back().attention.kv_heads = 2;
  EXPECT_EQ(rejection(d, 2), "");
  EXPECT_EQ(
      rejection(d, 4),
      "r.yaml: more tensor ranks than key-value heads, in some blocks only (expected at most 2, got 4) at degree");
}

}  // namespace rank_share_test
}  // namespace hawser::models
