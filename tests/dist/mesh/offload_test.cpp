// Saved tensors that are in host memory between forward and backward: not a bit of the training differs.
#include "toy_training.h"

namespace hawser {
namespace offload_test {

using testing::MeshCase;
using testing::Trained;

struct OffloadCase {
  MeshCase on;
  int window = 0;     // layers whose tensors return ahead of backward
  bool every = true;  // layer; else every second one

  std::string name() const {
    return testing::joined(on.name(), cat("ahead", window), testing::name_if(!every, "some_layers"));
  }
  friend void PrintTo(const OffloadCase& c, std::ostream* out) { *out << c.name(); }
};

using Offload = testing::CaseTest<OffloadCase>;

TEST_P(Offload, ChangesNothing) {
  const OffloadCase& c = GetParam();
  const models::Model model(testing::toy_description());
  plan::LayoutChoices layout = testing::toy_layout(c.on, model);
  static std::map<std::string, Trained> references;
  Trained& kept = references[c.on.name()];
  if (kept.losses.empty()) kept = testing::train(model, layout, {.micro_batches = c.on.micro_batches});
  for (std::size_t layer = 0; layer < layout.policies.size(); layer += c.every ? 1 : 2) {
    layout.policies[layer].offload = true;
  }
  layout.offload_window = c.window;
  std::int64_t host_bytes = 0;
  const Trained offloaded =
      testing::train(model, layout, {.micro_batches = c.on.micro_batches, .look = [&](engine::Session& session) {
                                       host_bytes = session.plan(step::Purpose::train).host_bytes();
                                     }});
  EXPECT_TRUE(offloaded.after == kept.after);
  EXPECT_EQ(offloaded.losses, kept.losses);
  EXPECT_GT(host_bytes, 0);
}

std::vector<OffloadCase> windows() {
  std::vector<OffloadCase> out;
  const int world = the_world->size(), layers = models::Model(testing::toy_description()).layers();
  const nn::SavePolicy none, full{.checkpointing = Checkpointing::full}, block{.checkpointing = Checkpointing::block},
      delayed{.checkpointing = Checkpointing::projections, .delay_weight_gradients = true};
  for (const nn::SavePolicy& policy : {none, full, block, delayed}) {
    const MeshCase c{.mesh = {.context = std::min(world, 2), .shard = std::max(world / 2, 1)},
                     .policy = policy,
                     .micro_batches = 2,
                     .in_flight = policy.delay_weight_gradients ? 2 : 1};
    for (const int window : {0, 1, layers}) out.push_back({c, window});
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Windows, Offload, ::testing::ValuesIn(windows()), testing::CaseName());

// On some layers of pipeline stages.
std::vector<OffloadCase> stages() {
  if (the_world->size() == 1) return {};
  return {{.on = {.mesh = {.shard = the_world->size() / 2},
                  .partition = {.stages = 2, .ends = {1, 2}},
                  .schedule = testing::Schedule::one_forward_one_backward,
                  .micro_batches = 3},
           .window = 1,
           .every = false}};
}
INSTANTIATE_TEST_SUITE_P(Stages, Offload, ::testing::ValuesIn(stages()), testing::CaseName());

}  // namespace offload_test
}  // namespace hawser
