// Dropout of attention's probabilities on one rank. Over ranks: context_exchange_test.cpp, tensor_test.cpp.
#include "nn/testing/context.h"
#include "outcome.h"
#include "toy_training.h"

namespace hawser {
namespace attention_dropout_test {

models::ModelDescription description(double dropout) {
  models::ModelDescription d = testing::toy_description();
  for (models::BlockDescription& block : d.blocks) block.attention.dropout = dropout;
  return d;
}

constexpr double kDropout = 0.25;

using AttentionDropout = testing::CaseTest<testing::MeshCase>;

// Recompute and backward draw the numbers of forward. With delayed weight gradients the norm has another order.
TEST_P(AttentionDropout, TrainsLikeWithoutRecompute) {
  const testing::MeshCase& c = GetParam();
  const models::Model model(description(kDropout));
  const auto trained_with = [&](const testing::MeshCase& on) {
    return testing::train(model, testing::toy_layout(on, model), {.inputs = {0, 1}});
  };
  static std::map<bool, testing::Trained> saving;  // of the policies that recompute nothing
  for (const bool delayed : {false, true}) {
    if (!saving.contains(delayed)) saving[delayed] = trained_with({.policy = {.delay_weight_gradients = delayed}});
  }
  const testing::Trained trained = trained_with(c);
  const testing::Trained& plain = saving.at(c.policy.delay_weight_gradients);
  EXPECT_EQ(trained.losses, plain.losses);
  EXPECT_TRUE(testing::same_bits(trained.after, plain.after));
  EXPECT_LT(testing::difference(saving.at(true).after, saving.at(false).after), 1e-6);
}

std::vector<testing::MeshCase> every_policy() {
  std::vector<testing::MeshCase> out;
  if (the_world->size() > 1) return out;
  for (const nn::SavePolicy& policy : nn::testing::all_policies()) out.push_back({.policy = policy});
  return out;
}
INSTANTIATE_TEST_SUITE_P(EveryPolicy, AttentionDropout, ::testing::ValuesIn(every_policy()), testing::CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(AttentionDropout);  // one rank

// A micro-batch of four sequences, or two of two sequences.
TEST(AttentionDropout, MicroBatchesTrainLikeOne) {
  if (the_world->size() > 1) GTEST_SKIP() << "mesh_1 runs it";
  const models::Model model(description(kDropout));
  plan::LayoutChoices layout = testing::toy_layout({}, model);
  const testing::Trained two = testing::train(model, layout, {.micro_batches = 2, .inputs = {0, 1}});
  layout.batch_sizes.sequences = 4;
  const testing::Trained one = testing::train(model, layout, {.micro_batches = 1, .inputs = {0, 1}});
  for (std::size_t i = 0; i < one.losses.size(); ++i) {
    EXPECT_NEAR(two.losses[i], one.losses[i], 1e-5 * one.losses[i]);
    EXPECT_NEAR(two.clips[i], one.clips[i], 1e-6);
  }
  EXPECT_LT(testing::difference(two.after, one.after), 1e-5);
}

// Without it, training has another loss, and a pass that does not train has no other.
TEST(AttentionDropout, IsOfTraining) {
  if (the_world->size() > 1) GTEST_SKIP() << "mesh_1 runs it";
  std::vector<double> trained, evaluated;
  for (const double dropout : {0.0, kDropout}) {
    const models::Model model(description(dropout));
    const plan::LayoutChoices layout = testing::toy_layout({}, model);
    trained.push_back(testing::train(model, layout, {.inputs = {0}}).losses[0]);
    evaluated.push_back(testing::run(model, layout, *comm::make_self_mesh(), 4, 0).loss);
  }
  EXPECT_EQ(evaluated[0], evaluated[1]);
  EXPECT_GT(std::abs(trained[0] - trained[1]), 1e-4 * trained[0]);
}

}  // namespace attention_dropout_test
}  // namespace hawser
