// Runs the tests on every rank of an mpirun, in the same order; rank 0 prints the report, the others only failures.
#include <gtest/gtest.h>

#include <cstring>
#include <iostream>
#include <memory>

#include "base/error.h"
#include "ranks.h"

namespace hawser::comm::ranks {

namespace {

constexpr int kSkipped = 77;  // CTest's SKIP_RETURN_CODE

World* the_world = nullptr;
std::unique_ptr<Device> the_device;
std::unique_ptr<Mesh> the_mesh;

// Why the tests cannot run on this machine, as a sentence; empty if they can.
std::string missing(World& world) {
  if (!kGpus) return {};
  const CudaInfo info = cuda_info();
  const int rank = world.local_rank();
  std::string mine = info.problem;
  if (mine.empty() && rank >= info.devices) mine = cat("rank ", rank, " of this machine has ", info.devices, " GPUs");
  for (const std::string& one : world.all_gather_strings(mine)) {
    if (!one.empty()) return one;
  }
  return {};
}

class FailuresOnly : public ::testing::EmptyTestEventListener {
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::cerr << "rank " << world().rank() << ": " << (result.file_name() ? result.file_name() : "?") << ':'
              << result.line_number() << ": " << result.summary() << '\n';
  }
  void OnTestStart(const ::testing::TestInfo& info) override {
    world().set_phase(std::string(info.test_suite_name()) + "." + info.name());
  }
};

}  // namespace

World& world() {
  return *the_world;
}

std::unique_ptr<Device> make_device([[maybe_unused]] World& in) {
  return kGpus ? make_cuda_device(in.local_rank()) : make_cpu_device();
}

std::unique_ptr<Mesh> make_mesh(World& in, Device& on, const comm::MeshSizes& sizes, double timeout_s) {
  return kGpus ? make_nccl_mesh(in, sizes, timeout_s, on) : make_mpi_mesh(in, sizes, timeout_s);
}

Device& device() {
  if (the_device == nullptr) the_device = make_device(world());
  return *the_device;
}

Mesh& flat_mesh() {
  if (the_mesh == nullptr) the_mesh = make_mesh(world(), device(), {.replicate = world().size()}, 60.0);
  return *the_mesh;
}

}  // namespace hawser::comm::ranks

int main(int argc, char** argv) {
  using namespace hawser::comm;  // NOLINT
  ::testing::InitGoogleTest(&argc, argv);
  if (argc > 2 && std::strcmp(argv[1], "--fault") == 0) {
    try {
      return ranks::run_fault(argv[2]);
    } catch (...) {  // unwinds the stack; the World has ended the run by then
      return 99;
    }
  }
  World world(60.0, {}, 1'000'003);  // messages of many tests are longer than a piece
  if (const std::string why = ranks::missing(world); !why.empty()) {
    if (world.rank().value() == 0) std::cout << "SKIPPED: these tests need one GPU per rank: " << why << std::endl;
    return ranks::kSkipped;
  }
  ranks::the_world = &world;
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  if (world.rank().value() != 0) delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new ranks::FailuresOnly);
  const bool failed = RUN_ALL_TESTS() != 0;
  ranks::the_mesh.reset();
  ranks::the_device.reset();
  return world.any(failed) ? 1 : 0;
}
