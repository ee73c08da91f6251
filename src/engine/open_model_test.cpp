#include "engine/open_model.h"

#include <gtest/gtest.h>

#include "base/testing/test_paths.h"
#include "engine/load_state.h"
#include "engine/session.h"
#include "nn/blocks/linear.h"
#include "plan/layout.h"

namespace hawser::engine {
namespace open_model_test {

// A recipe's adapters and frozen weights: the base model's folder has no adapters, and they start at initial values.
TEST(OpenModel, ARecipeMayChangeTheModel) {
  Problems problems;
  const std::string folder = std::string(testing::kSourceFolder) + "/tests/golden/tiny/tied";
  ModelChanges changes{.describe =
                           [](models::ModelDescription& description, Problems&) {
                             nn::AttentionConfig& first = description.blocks.front().attention;
                             first.adapters = {{first.q, 2, 1.0, 0.0}};
                           },
                       .spec_of =
                           [](const nn::Param& param) {
                             nn::FlatSpec spec = nn::common_domain(param);
                             spec.trainable = param.name.find("lora_") != std::string::npos;
                             return spec;
                           }};
  OpenModel open = open_model(folder, false, problems, changes);
  ASSERT_EQ(problems.lines(), "");
  plan::LayoutChoices layout;
  layout.batch_sizes = {.sequences = 1, .sequence_length = 8, .max_documents = 1};
  layout.policies.assign(static_cast<std::size_t>(open.model->layers()), {});
  const auto device = make_cpu_device();
  const auto mesh = comm::make_self_mesh();
  Session session(*open.model, plan::derive(layout, *open.model), *device, *mesh, {step::Purpose::train});
  load_weights(session, open, 7);
  session.synchronize();
  int adapters = 0, frozen = 0;
  for (int f = 0; f < static_cast<int>(open.model->flats().size()); ++f) {
    const nn::Flat& flat = open.model->flat(f);
    const step::FlatState& state = session.state().flat(f);
    const std::int64_t count = state.count;
    const Storage expected(*device, DType::f32, {count}), drawn(*device, DType::f32, {count});
    models::load_flat(*open.model, f, *open.weights, 0, count, expected);
    models::initialise_flat(*open.model, f, 7, 0, count, session.stream(), drawn);
    session.stream().synchronize();
    for (const nn::Param& param : flat.params()) {
      (flat.spec().trainable ? adapters : frozen) += 1;
      EXPECT_EQ(flat.spec().trainable, param.name.find("lora_") != std::string::npos);
    }
    const float* const same = flat.spec().trainable ? drawn.view().data<float>() : expected.view().data<float>();
    EXPECT_TRUE(std::equal(same, same + count, state.stored.data<float>())) << flat.name();
  }
  EXPECT_EQ(adapters, 2);
  EXPECT_GT(frozen, 10);

  changes.describe = [](models::ModelDescription&, Problems& of) {
    of.add({.what = "no such target", .at = "adapter"});
  };
  const OpenModel rejected = open_model(folder, false, problems, changes);
  EXPECT_EQ(rejected.model->vocabulary(), 96) << "without the changes, for further checks";
  EXPECT_EQ(problems.lines(), "no such target at adapter");
}

}  // namespace open_model_test
}  // namespace hawser::engine
