#include <gtest/gtest.h>

#include "comm/mesh.h"
#include "comm/mpi/world.h"
#include "seams.h"

namespace hawser::testing {

namespace {
comm::Group* the_pair = nullptr;
}

comm::Group& pair() {
  return *the_pair;
}

}  // namespace hawser::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  hawser::comm::World world(60.0);
  const auto mesh = hawser::comm::make_mpi_mesh(world, {.context = world.size()}, 60.0);
  hawser::testing::the_pair = &mesh->context();
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  if (world.rank().value() != 0) delete listeners.Release(listeners.default_result_printer());
  const bool failed = RUN_ALL_TESTS() != 0;
  return world.any(failed) ? 1 : 0;
}
