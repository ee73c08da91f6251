// State that layers share if they are equal.
#include <gtest/gtest.h>

#include "support.h"

namespace hawser {
namespace slopes_test {

TEST(StateTables, LayersHaveTheirOwnSlopes) {
  models::ModelDescription d = testing::toy_description(true, 4);
  for (const auto& [block, scale] : {std::pair{0, 1.0}, std::pair{1, 0.5}, std::pair{3, 1.0}}) {
    d.blocks[static_cast<std::size_t>(block)].attention.alibi = true;
    d.blocks[static_cast<std::size_t>(block)].attention.alibi_scale = scale;
  }
  const models::Model model(d);
  const auto mesh = comm::make_self_mesh();
  const auto device = make_cpu_device();
  const plan::LayoutChoices layout = testing::make_test_layout({.length = 8, .sequences = 1}, model);
  const step::ModelState state(model, plan::state_options(plan::derive(layout, model), *mesh, true), *device);
  std::vector<TensorView> slopes;
  for (int layer = 0; layer < model.layers(); ++layer) {
    const nn::AttentionConfig* const c = model.attention(layer);
    if (c == nullptr) continue;
    slopes.push_back(state.alibi_slopes(layer));
    if (!c->alibi) continue;
    const auto* const data = slopes.back().data<float>();
    EXPECT_EQ(std::vector<float>(data, data + slopes.back().elements()), c->alibi_slopes()) << layer;
  }
  ASSERT_EQ(slopes.size(), 4u);
  EXPECT_NE(slopes[0].raw(), slopes[1].raw());
  EXPECT_TRUE(slopes[2].empty());
  EXPECT_EQ(slopes[0].raw(), slopes[3].raw());
}

}  // namespace slopes_test
}  // namespace hawser
