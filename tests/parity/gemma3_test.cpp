// Gemma 3 270M with its real weights against transformers in float64 (tests/golden/README.md): sequences are longer
// than its windows, and the vocabulary is large.
#include "real_model.h"

namespace hawser {
namespace gemma3_test {

class Gemma3 : public testing::RealModelTest {
 protected:
  Gemma3() : RealModelTest("gemma3") {}
};

TEST_F(Gemma3, LossAndGradientsEqualTransformers) {
  expect_loss_and_gradients();
}

TEST_F(Gemma3, GreedyTextEqualsTransformers) {
  expect_greedy_text();
}

}  // namespace gemma3_test
}  // namespace hawser
