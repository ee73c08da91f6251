#include "mesh_world.h"

#include <gtest/gtest.h>

#include <iostream>
#include <string_view>

#include "base/cat.h"
#include "base/testing/test_paths.h"

namespace hawser {

comm::World* the_world = nullptr;
bool delays_every_task = false;
std::string golden_folder = cat(testing::kSourceFolder, "/tests/golden/tiny");

#ifdef HAWSER_RANKS_ON_GPUS
namespace {
std::vector<std::pair<comm::MeshSizes, std::shared_ptr<comm::Mesh>>> gpu_meshes;  // until main() ends
}
#endif

std::shared_ptr<Device> rank_device([[maybe_unused]] const CpuOptions& options) {
#ifdef HAWSER_RANKS_ON_GPUS
  static const std::shared_ptr<Device> gpu = make_cuda_device(the_world->local_rank());
  return gpu;
#else
  CpuOptions of_run = options;
  if (delays_every_task) of_run.delayed_share = 1;
  return make_cpu_device(of_run);
#endif
}

std::shared_ptr<comm::Mesh> rank_mesh(const comm::MeshSizes& sizes) {
  constexpr double kTimeoutS = 60.0;
#ifdef HAWSER_RANKS_ON_GPUS
  for (const auto& [of, mesh] : gpu_meshes) {
    if (of == sizes) return mesh;
  }
  return gpu_meshes.emplace_back(sizes, comm::make_nccl_mesh(*the_world, sizes, kTimeoutS, *rank_device())).second;
#else
  return comm::make_mpi_mesh(*the_world, sizes, kTimeoutS);
#endif
}

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

// Without --gtest_filter, products of all cases do not run: mesh_full_N runs them (CMakeLists.txt).
constexpr const char* kProducts = "*/Full*.*";

#ifdef HAWSER_RANKS_ON_GPUS
// Without tests that access a session's memory in place, or whose optimizers compute on a processor.
constexpr const char* kNotOnGpus =
    "Head.LogitsOfGeneration*:*/ExactHostWeights.*:*/Fp8HostWeights.*:*/HostStateOfFolder.*:"
    "*/HostStateOfQuantizedWeights.*:*/HostWeightsOfOptimizers.*:*/Nf4Base.*:*/Nf4Weights.*:"
    "Nf4Adapters.AResumedRunHasTheSameBase:Nf4Adapters.WeightsIn*:Optimizers*/Tensor.*";

// Why the tests cannot run on this machine; empty if they can.
std::string missing(comm::World& world) {
  const CudaInfo info = cuda_info();
  std::string mine = info.problem;
  if (mine.empty() && world.local_rank() >= info.devices) {
    mine = cat("rank ", world.local_rank(), " of this machine has ", info.devices, " GPUs");
  }
  for (const std::string& one : world.all_gather_strings(mine)) {
    if (!one.empty()) return one;
  }
  return {};
}
#endif

}  // namespace
}  // namespace hawser

int main(int argc, char** argv) {
  // The cases of a test are those of the world's size: it is there before InitGoogleTest lists them. 300 s is the limit
  // of a control operation: the others wait in one while rank 0 computes what all are compared with.
  hawser::comm::World world(300.0);
  hawser::the_world = &world;
  std::string left_out = hawser::kProducts;
#ifdef HAWSER_RANKS_ON_GPUS
  left_out += hawser::cat(":", hawser::kNotOnGpus);
#endif
  GTEST_FLAG_SET(filter, "-" + left_out);  // unless an argument has another
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i], golden = "--golden=";
    if (argument.starts_with(golden)) hawser::golden_folder = argument.substr(golden.size());
    if (argument == "--delay-every-task") hawser::delays_every_task = true;
  }
  const bool first = world.rank() == hawser::Rank(0);
  if (GTEST_FLAG_GET(list_tests)) return first ? RUN_ALL_TESTS() : 0;
#ifdef HAWSER_RANKS_ON_GPUS
  if (const std::string why = hawser::missing(world); !why.empty()) {
    if (first) std::cout << why << ": nothing was tested\n";
    return 77;  // CTest's SKIP_RETURN_CODE
  }
#endif
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  if (!first) {
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new hawser::Failures);  // deleted by listeners
  }
  const bool failed = RUN_ALL_TESTS() != 0;
#ifdef HAWSER_RANKS_ON_GPUS
  hawser::gpu_meshes.clear();  // before the world ends
#endif
  return world.any(failed) ? 1 : 0;
}
