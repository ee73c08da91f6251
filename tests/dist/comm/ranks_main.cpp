// Runs the cases on every rank of an mpirun, in the same order; rank 0 reports, the others speak only of failures.
#include <gtest/gtest.h>

#include <cstring>
#include <iostream>
#include <memory>

#include "ranks.h"

namespace hawser::comm::ranks {

namespace {

World* the_world = nullptr;

class FailuresOnly : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::cerr << "rank " << world().rank() << ": " << (result.file_name() ? result.file_name() : "?") << ':'
              << result.line_number() << ": " << result.summary() << '\n';
  }
  void OnTestStart(const testing::TestInfo& info) override {
    world().set_phase(std::string(info.test_suite_name()) + "." + info.name());
  }
};

}  // namespace

World& world() {
  return *the_world;
}

}  // namespace hawser::comm::ranks

int main(int argc, char** argv) {
  using namespace hawser::comm;  // NOLINT
  testing::InitGoogleTest(&argc, argv);
  if (argc > 2 && std::strcmp(argv[1], "--fault") == 0) {
    try {
      return ranks::run_fault(argv[2]);
    } catch (...) {  // lets the stack unwind; the World has ended the run before this
      return 99;
    }
  }
  World world(60.0);
  ranks::the_world = &world;
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  if (world.rank().value() != 0) delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new ranks::FailuresOnly);
  const bool failed = RUN_ALL_TESTS() != 0;
  return world.any(failed) ? 1 : 0;
}
