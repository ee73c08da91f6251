// A model like BERT on tensor ranks and on ranks that shard it: embeddings of token types and of positions with an
// offset, normed, whose sum backward computes again; blocks with norms of the sums; a head that transforms its input.
#include "tensor_case.h"

namespace hawser {
namespace embedding_and_head_test {

using testing::Division;
using testing::TensorCase;

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

using EmbeddingAndHead = testing::CaseTest<TensorCase>;

TEST_P(EmbeddingAndHead, TrainLikeOneRank) {
  testing::expect_like_one_rank(GetParam());
}

std::vector<TensorCase> meshes() {
  std::vector<TensorCase> out;
  const int world = the_world->size();
  if (world < 2 || world > 4) return out;  // long on eight ranks
  const nn::SavePolicy full{.checkpointing = Checkpointing::full, .delay_weight_gradients = true},
      selective{.checkpointing = Checkpointing::selective};
  const auto add = [&](bool tied, comm::MeshSizes mesh, const Division& division, const nn::SavePolicy& policy) {
    const models::ModelDescription whole = masked_model(tied, tied ? 3 : 1);
    mesh.kv_copies = testing::kv_copies(whole, mesh.tensor);
    out.push_back({.model = tied ? "tied" : "untied",
                   .on = {.mesh = mesh, .policy = policy, .division = division},
                   .whole = whole,
                   .first_step = true});
  };
  add(true, {.shard = world}, {}, {});
  add(false, {.context = 2, .shard = world / 2}, {}, selective);
  for (const bool vocabulary : {true, false}) {
    for (const bool sequence_parallel : {true, false}) {
      Division division{.vocabulary = vocabulary, .sequence_parallel = sequence_parallel};
      add(true, {.tensor = world}, division, {});
      add(false, {.tensor = 2, .shard = world / 2}, division, full);
      if (!vocabulary || world > 2) continue;
      division.one_plan = true;
      add(true, {.tensor = world}, division, {});
    }
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Meshes, EmbeddingAndHead, ::testing::ValuesIn(meshes()), testing::CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(EmbeddingAndHead);

using EmbeddingAndHeadOfStages = testing::CaseTest<testing::MeshCase>;

// The first stage gathers the embedding's weights for its backward, too, and the last one has the head's transform.
TEST_P(EmbeddingAndHeadOfStages, TrainLikeOneRank) {
  const testing::MeshCase& c = GetParam();
  const models::Model model(masked_model(c.tied, 3));
  const testing::Trained trained =
      testing::train(model, testing::toy_layout(c, model), {.micro_batches = c.micro_batches});
  testing::expect_training_of_one_rank(model, testing::toy_layout({}, model), c.batch_size(), trained);
}

std::vector<testing::MeshCase> stages() {
  const int world = the_world->size();
  if (world != 2 && world != 4) return {};
  std::vector<testing::MeshCase> out(2, {.mesh = {.shard = world / 2},
                                         .partition = {.stages = 2, .ends = {1, 2}},
                                         .schedule = testing::Schedule::one_forward_one_backward,
                                         .policy = {.checkpointing = Checkpointing::full},
                                         .micro_batches = 3});
  out[1].tied = false;
  return out;
}
INSTANTIATE_TEST_SUITE_P(TwoStages, EmbeddingAndHeadOfStages, ::testing::ValuesIn(stages()), testing::CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(EmbeddingAndHeadOfStages);

}  // namespace embedding_and_head_test
}  // namespace hawser
