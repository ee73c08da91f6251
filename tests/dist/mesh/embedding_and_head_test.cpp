// A model like BERT on tensor ranks and on ranks that shard it: embeddings of token types and of positions with an
// offset, normed, whose sum backward computes again; blocks with norms of the sums; a head that transforms its input.
#include "support/pipeline.h"
#include "tensor_case.h"

namespace hawser {
namespace embedding_and_head_test {

using testing::Division;

models::ModelDescription masked_model(bool tied, std::int64_t types) {
  models::ModelDescription d = testing::toy_description(tied);
  for (models::BlockDescription& block : d.blocks) {
    block.mlp.inner = 38;  // equal slices for one plan
    block.attention.norm_config = block.mlp.norm_config = {.kind = nn::NormKind::layer, .bias = true};
    block.attention.norm_place = block.mlp.norm_place = nn::NormPlace::post;
  }
  nn::EmbeddingConfig& e = d.embedding;
  e.positions = "model.positions", e.max_position = 1024, e.position_offset = 2;
  e.types = "model.types", e.type_count = types;
  e.scale = 1.5;
  e.norm_config = nn::NormConfig{.kind = nn::NormKind::layer, .bias = true};
  e.norm = "model.embedding_norm";
  if (types > 1) d.tables = {nn::kTokenTypes};
  d.head.norm_config = *e.norm_config;
  d.head.transform = nn::HeadTransformConfig{.dense = "head.dense", .bias = tied};
  if (!tied) d.head.transform->norm_config = nn::NormConfig(), d.head.transform->norm = "model.final_norm";
  return d;
}

void expect_equal(const models::ModelDescription& whole, comm::MeshSizes mesh, const Division& division,
                  const std::string& text, const nn::SavePolicy& policy = {}) {
  const auto own = [](const nn::Param& param) { return param.flat; };
  mesh.kv_copies = testing::kv_copies(whole, mesh.tensor);
  testing::expect_first_gradients(
      testing::expect_like_one_rank(whole, own, mesh, policy, testing::toy_adamw(), division, {.inputs = {0}}), text);
}

TEST(EmbeddingAndHead, TrainLikeOneRank) {
  const int world = the_world->size();
  if (world < 2) GTEST_SKIP() << "needs two ranks";
  if (world > 4) GTEST_SKIP() << "long on eight ranks; mesh_2 and mesh_4 run it";
  const nn::SavePolicy full{.checkpointing = Checkpointing::full, .delay_weight_gradients = true},
      selective{.checkpointing = Checkpointing::selective};
  const models::ModelDescription tied = masked_model(true, 3), untied = masked_model(false, 1);
  expect_equal(tied, {.shard = world}, {}, "sharded");
  expect_equal(untied, {.context = 2, .shard = world / 2}, {}, "context", selective);
  for (const bool vocabulary : {true, false}) {
    for (const bool sequence : {true, false}) {
      Division division{.vocabulary = vocabulary, .sequence_parallel = sequence};
      const std::string text = cat("vocabulary ", vocabulary, " sequence ", sequence);
      expect_equal(tied, {.tensor = world}, division, text);
      expect_equal(untied, {.tensor = 2, .shard = world / 2}, division, text + ", untied", full);
      if (!vocabulary || world > 2) continue;
      division.one_plan = true;
      expect_equal(tied, {.tensor = world}, division, text + ", one plan");
    }
  }
}

// The first stage gathers the embedding's weights for its backward, too, and the last one has the head's transform.
TEST(EmbeddingAndHead, TrainOverStagesLikeOneRank) {
  const int world = the_world->size();
  if (world != 2 && world != 4) GTEST_SKIP() << "mesh_2 and mesh_4 run it";
  for (const bool tied : {true, false}) {
    const models::Model model(masked_model(tied, 3));
    plan::LayoutChoices layout = testing::toy_layout({.shard = world / 2}, model);
    layout.micro_batches = 3;
    layout.policies.assign(layout.policies.size(), {.checkpointing = Checkpointing::full});
    layout.partition = {.stages = 2, .ends = {1, model.blocks()}};
    layout.schedule.passes = testing::one_forward_one_backward_of(2);
    const testing::Trained cut = testing::train(model, layout, {.micro_batches = layout.micro_batches});
    testing::expect_one_ranks_training(model, testing::toy_layout({}, model),
                                       layout.batch_sizes.sequences * layout.data_ranks() * layout.micro_batches, cut,
                                       tied ? "stages, tied" : "stages");
  }
}

}  // namespace embedding_and_head_test
}  // namespace hawser
