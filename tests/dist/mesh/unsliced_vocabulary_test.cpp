// Sequence parallelism with an embedding and a head that every tensor rank has all of: a vocabulary of 67 does not
// divide. Each rank computes its rows of the residual; losses and gradients are sums over the tensor ranks.
#include "tensor_case.h"

namespace hawser {
namespace unsliced_vocabulary_test {

const testing::Division kRows{.sequence_parallel = true};

using UnslicedVocabulary = testing::CaseTest<testing::TensorCase>;

TEST_P(UnslicedVocabulary, TrainsLikeOneRank) {
  testing::expect_like_one_rank(GetParam());
}

std::vector<testing::TensorCase> rows_of_the_residual() {
  std::vector<testing::TensorCase> out;
  const int world = the_world->size();
  if (world < 2 || world > 4) return out;  // long on eight ranks
  const nn::SavePolicy none, full{.checkpointing = Checkpointing::full, .delay_weight_gradients = true};
  for (const bool tied : {true, false}) {
    testing::TensorCase c{.model = tied ? "tied" : "untied", .whole = testing::toy_description(tied)};
    c.whole.embedding.positions = "model.positions";
    c.whole.embedding.max_position = 1024;
    const auto add = [&](const comm::MeshSizes& mesh, const nn::SavePolicy& policy, bool first_step) {
      c.on = {.mesh = mesh, .policy = policy, .division = kRows};
      c.first_step = first_step;
      out.push_back(c);
    };
    const comm::MeshSizes all{.tensor = world, .kv_copies = testing::kv_copies(c.whole, world)};
    for (const nn::SavePolicy& policy : {none, full}) {
      if (world == 2 || tied) add(all, policy, true);
    }
    add(all, none, false);
    if (world == 4) add({.tensor = 2, .context = 2}, full, false);
    if (world == 4) add({.tensor = 2, .shard = 2}, none, false);
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(SequenceParallel, UnslicedVocabulary, ::testing::ValuesIn(rows_of_the_residual()),
                         testing::CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(UnslicedVocabulary);

// Without gradients: each tensor rank adds the loss of its rows.
TEST(UnslicedVocabulary, EvaluatesToTheLossOfOneRank) {
  if (the_world->size() != 2) GTEST_SKIP() << "two tensor ranks";
  const models::ModelDescription whole = testing::divisible(testing::toy_description());
  const auto pair = rank_mesh({.tensor = 2});
  const models::Model one(whole),
      half(testing::half_of(whole, pair->coordinate().tensor, kRows), nn::with_sequence_parallelism(testing::own_spec));
  const auto loss = [](const models::Model& model, comm::Mesh& mesh) {
    const bool divided = mesh.sizes().tensor > 1;
    plan::LayoutChoices layout =
        testing::toy_layout({.mesh = mesh.sizes(), .division = divided ? kRows : testing::Division{}}, model);
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
