// Steps on real ranks match their plans on every mesh, and a guarded arena gives the same losses.
#include <gtest/gtest.h>

#include "comm/mpi/world.h"
#include "support.h"

namespace hawser {
namespace ranks_test {

comm::World* the_world = nullptr;

TEST(ReplayOnRanks, EveryStepMatchesItsPlanItemByItem) {
  const models::Model model(testing::toy_description());
  const std::vector<testing::LayoutOptions> policies = testing::all_policies();
  std::size_t turn = 0;
  for (const comm::MeshSizes& sizes : testing::all_meshes(the_world->size())) {
    // Every mesh with three policies, every policy on some mesh, and all policies on the mesh that uses all seams.
    const bool all = sizes.context == 2;
    for (std::size_t i = 0; i < (all ? policies.size() : 3); ++i) {
      testing::LayoutOptions options = policies[all ? i : turn++ % policies.size()];
      options.mesh = sizes;
      options.length = 61;
      const plan::LayoutChoices layout = testing::make_test_layout(options, model);
      std::vector<double> losses[2];
      for (const bool watched : {false, true}) {
        const auto mesh = comm::make_mpi_mesh(*the_world, sizes, 60.0);
        const auto device = make_cpu_device({.random_delay_s = watched ? 0.0002 : 0.0, .delay_seed = 3});
        engine::Session session(model, plan::derive(layout, model), *device, *mesh,
                                {step::Purpose::train, step::Purpose::loss}, std::nullopt,
                                {.replay = watched, .guard = watched});
        testing::Steps steps(session);
        for (const auto purpose :
             {step::Purpose::train, step::Purpose::loss, step::Purpose::train, step::Purpose::train}) {
          losses[watched].push_back(steps.run(purpose));
        }
      }
      EXPECT_EQ(losses[0], losses[1]) << testing::text_of(options);
    }
  }
}

}  // namespace ranks_test
}  // namespace hawser

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  hawser::comm::World world(60.0);
  hawser::ranks_test::the_world = &world;
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  if (world.rank().value() != 0) delete listeners.Release(listeners.default_result_printer());
  const bool failed = RUN_ALL_TESTS() != 0;
  return world.any(failed) ? 1 : 0;
}
