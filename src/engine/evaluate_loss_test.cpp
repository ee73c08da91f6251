#include "engine/evaluate_loss.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/testing/test_paths.h"
#include "engine/open_model.h"
#include "plan/layout.h"

namespace hawser::engine {
namespace evaluate_loss_test {

// The loss of five sequences, one in each micro-batch, of which a step of the session takes `together`.
std::pair<double, std::int64_t> loss_of(int together) {
  Problems problems;
  OpenModel open =
      open_trained_model((std::filesystem::path(testing::kSourceFolder) / "tests/golden/tiny/gqa").string(), problems);
  HAWSER_CHECK(problems.empty(), problems.lines());
  const std::unique_ptr<Device> device = make_cpu_device();
  Recipe recipe;
  recipe.data.sequence_length = 8;
  recipe.data.max_documents = 1;
  recipe.train.micro_batch_size = 1;
  recipe.train.global_batch_size = 5;
  plan::LayoutChoices choices = plan::layout_choices(recipe, *open.model, 1, DType::f32, 1, device->kind());
  choices.forward_micro_batches = together;
  const plan::Layout layout = plan::derive(choices, *open.model);
  const std::unique_ptr<comm::Mesh> mesh = comm::make_self_mesh();
  Session session(*open.model, layout, *device, *mesh, {step::Purpose::loss});
  session.load(*open.weights, 0);
  std::vector<prepare::Line> lines;
  for (std::int32_t i = 0; i < 5; ++i) lines.push_back({.ids = {5 + i, 17, 3 * i, 40, 61 - i}});
  const batches::BatchLoader loader(batches::listed_sequences(lines, nullptr, recipe.data.sequence_length),
                                    layout.batch, {}, {.global_batch_size = 5, .shuffle = false});
  return evaluate_loss(session, loader, loader.steps());
}

// Two, three and four do not divide five: what fills the last step of the session counts for nothing.
TEST(EvaluateLoss, IsTheSameHoweverManyMicroBatchesAreTakenTogether) {
  const auto [loss, tokens] = loss_of(1);
  EXPECT_EQ(tokens, 5 * 4);
  for (const int together : {2, 3, 4, 5}) {
    const auto [other, targets] = loss_of(together);
    EXPECT_NEAR(other, loss, 1e-6 * loss) << together;
    EXPECT_EQ(targets, tokens) << together;
  }
}

}  // namespace evaluate_loss_test
}  // namespace hawser::engine
