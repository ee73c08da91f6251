// A snapshot has the state of its step, while later steps run.
#include "train/snapshot.h"

#include <gtest/gtest.h>

#include <cstring>

#include "support.h"

namespace hawser {
namespace snapshot_test {

std::vector<std::byte> bytes_of(const std::vector<NamedState>& states) {
  std::vector<std::byte> out;
  for (const NamedState& state : states) {
    for (const Box& box : state.boxes) out.insert(out.end(), box.view.raw(), box.view.raw() + box.view.bytes());
  }
  return out;
}

TEST(Snapshot, HasTheStateOfItsStep) {
  const models::Model model(testing::llama_description({.blocks = 2}));
  const plan::LayoutChoices layout = testing::make_test_layout({.length = 32}, model);
  const auto mesh = comm::make_self_mesh();
  const auto quiet = make_cpu_device();
  engine::Session twin(model, plan::derive(layout, model), *quiet, *mesh, {step::Purpose::train});
  testing::Steps alone(twin);
  std::vector<std::vector<std::byte>> after{{}};
  for (int step = 1; step <= 12; ++step) {
    alone.run(step::Purpose::train);
    after.push_back(bytes_of(engine::HostCopy(twin).states()));
    ASSERT_NE(after.back(), after[after.size() - 2]);
  }
  for (const std::uint64_t seed : {1, 2, 3}) {
    // Random delays before work reorder everything that is not ordered by events. Replay checks each step's plan.
    const auto device = make_cpu_device({.random_delay_s = 2e-4, .delay_seed = seed});
    engine::Session session(model, plan::derive(layout, model), *device, *mesh, {step::Purpose::train}, std::nullopt,
                            {.replay = true});
    testing::Steps steps(session);
    train::Snapshot snapshot(session, {}, 1000);  // smaller than its tensors
    EXPECT_GE(snapshot.bytes(), static_cast<std::int64_t>(after[1].size()));
    for (int step = 1; step <= 12; step += 3) {
      snapshot.take(steps.enqueue(step::Purpose::train).end);
      steps.enqueue(step::Purpose::train);
      const step::StepOutput last = steps.enqueue(step::Purpose::train);
      snapshot.wait();
      EXPECT_TRUE(bytes_of(snapshot.states()) == after[static_cast<std::size_t>(step)]) << "step " << step;
      host_wait(last.end);
    }
    session.synchronize();
    EXPECT_TRUE(bytes_of(engine::HostCopy(session).states()) == after[12]);
  }
}

}  // namespace snapshot_test
}  // namespace hawser
