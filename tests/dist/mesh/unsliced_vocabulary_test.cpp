// Sequence parallelism with an embedding and a head that every tensor rank has all of: a vocabulary of 67 does not
// divide. Each rank computes its rows of the residual; losses and gradients are sums over the tensor ranks.
#include "tensor_case.h"

namespace hawser {
namespace unsliced_vocabulary_test {

const testing::Division kRows{.sequence_parallel = true};

testing::OnMeshAndAlone train_rows(const models::ModelDescription& whole, const comm::MeshSizes& mesh,
                                   const nn::SavePolicy& policy, const testing::Training& training) {
  const auto own = [](const nn::Param& param) { return param.flat; };
  return testing::expect_like_one_rank(whole, own, mesh, policy, testing::toy_adamw(), kRows, training);
}

TEST(UnslicedVocabulary, SequenceParallelTrainsLikeOneRank) {
  const int world = the_world->size();
  if (world < 2) GTEST_SKIP() << "needs two tensor ranks";
  if (world > 4) GTEST_SKIP() << "long on eight ranks; mesh_2 and mesh_4 run it";
  const nn::SavePolicy none, full{.checkpointing = Checkpointing::full, .delay_weight_gradients = true};
  for (const bool tied : {true, false}) {
    models::ModelDescription whole = testing::toy_description(tied);
    whole.embedding.positions = "model.positions";
    whole.embedding.max_position = 1024;
    comm::MeshSizes mesh{.tensor = world};
    mesh.kv_copies = testing::kv_copies(whole, world);
    for (const nn::SavePolicy& policy : {none, full}) {
      if (world == 4 && tied == (&policy == &none)) continue;
      testing::expect_first_gradients(train_rows(whole, mesh, policy, {.inputs = {0}}), tied ? "tied" : "untied");
    }
    train_rows(whole, mesh, none, {});
    if (world == 4) train_rows(whole, {.tensor = 2, .context = 2}, full, {});
    if (world == 4) train_rows(whole, {.tensor = 2, .shard = 2}, none, {});
  }
}

// Without gradients: each tensor rank adds the loss of its rows.
TEST(UnslicedVocabulary, EvaluatesToTheLossOfOneRank) {
  if (the_world->size() != 2) GTEST_SKIP() << "two tensor ranks";
  const models::ModelDescription whole = testing::toy_description();
  const auto pair = rank_mesh({.tensor = 2});
  const nn::FlatSpecOf own = [](const nn::Param& param) { return param.flat; };
  const models::Model one(whole),
      half(testing::half_of(whole, pair->coordinate().tensor, kRows), nn::with_sequence_parallelism(own));
  const auto loss = [](const models::Model& model, comm::Mesh& mesh) {
    plan::LayoutChoices layout = testing::toy_layout(mesh.sizes(), model);
    if (mesh.sizes().tensor > 1) {
      layout.sequence_parallel = true;
      layout.replace_seams = [](nn::Seams& seams, comm::Mesh& groups) {
        seams.redistribute = std::make_shared<testing::SequenceParallel>(groups.tensor());
        seams.tensor_reduce = std::make_shared<testing::TensorSums>(groups.tensor());
      };
    }
    const testing::ToySteps steps(model, layout, mesh.coordinate(), 2);
    const auto device = rank_device();
    engine::Session session(model, plan::derive(layout, model), *device, mesh, {step::Purpose::loss}, std::nullopt,
                            {.replay = true});
    session.initialise(3);
    const auto output = session.enqueue(step::Purpose::loss, steps.input(0));
    session.synchronize();
    return output.result->loss_sum.value();
  };
  const double expected = testing::on_one_rank([&] { return loss(one, *comm::make_self_mesh()); });
  EXPECT_GT(expected, 0);
  EXPECT_NEAR(loss(half, *pair), expected, 1e-5 * expected);
}

}  // namespace unsliced_vocabulary_test
}  // namespace hawser
