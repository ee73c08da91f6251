#include "mesh_world.h"

#include <gtest/gtest.h>

namespace hawser {
comm::World* the_world = nullptr;
}

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  hawser::comm::World world(60.0);
  hawser::the_world = &world;
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  if (world.rank().value() != 0) delete listeners.Release(listeners.default_result_printer());
  const bool failed = RUN_ALL_TESTS() != 0;
  return world.any(failed) ? 1 : 0;
}
