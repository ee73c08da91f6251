#include "mesh_world.h"

#include <gtest/gtest.h>

#include <iostream>
#include <string>

#include "base/cat.h"

namespace hawser {
comm::World* the_world = nullptr;

namespace {

// Rank 0 prints everything, the others only what fails.
class Failures : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo& test) override { test_ = cat(test.test_suite_name(), ".", test.name()); }
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    const char* const file = result.file_name();
    std::cerr << cat("rank ", the_world->rank(), ": ", test_, ": ", file == nullptr ? "" : file, ":",
                     result.line_number(), ": ", result.message(), "\n");
  }

  std::string test_;
};

}  // namespace
}  // namespace hawser

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  hawser::comm::World world(60.0);
  hawser::the_world = &world;
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  if (world.rank().value() != 0) {
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new hawser::Failures);  // deleted by listeners
  }
  const bool failed = RUN_ALL_TESTS() != 0;
  return world.any(failed) ? 1 : 0;
}
