#include "device/gpus.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/testing/temporary_folder.h"

namespace hawser {
namespace gpus_test {

const GpuProperties kH100{"NVIDIA H100 80GB HBM3", 9, 0};
const GpuProperties kA100{"NVIDIA A100-SXM4-80GB", 8, 0};
const GpuProperties kB200{"NVIDIA B200", 10, 0};

TEST(Gpus, AllAreUsedIfTheBuildSupportsThem) {
  const CudaInfo info = supported_gpus({kH100, kH100});
  EXPECT_EQ(info.devices, 2);
  EXPECT_EQ(info.ordinals, (std::vector<int>{0, 1}));
  EXPECT_EQ(info.name, kH100.name);
  EXPECT_EQ(info.problem, "");
  EXPECT_EQ(info.unused, "");
}

TEST(Gpus, UnsupportedOnesAreNamedWithWhatTheBuildSupports) {
  const CudaInfo info = supported_gpus({kA100, kA100, kB200});
  EXPECT_EQ(info.devices, 0);
  EXPECT_EQ(info.problem,
            "this build does not support GPUs 0, 1 (NVIDIA A100-SXM4-80GB, compute capability 8.0) and GPU 2 (NVIDIA "
            "B200, compute capability 10.0); it supports compute capability 9.0 (H100, H200)");
  EXPECT_EQ(info.unused, info.problem);
}

// A workstation's display GPU may come before or after the one that trains.
TEST(Gpus, EveryGpuIsLookedAt) {
  const CudaInfo info = supported_gpus({kA100, kH100, kB200, kH100});
  EXPECT_EQ(info.devices, 2);
  EXPECT_EQ(info.ordinals, (std::vector<int>{1, 3}));
  EXPECT_EQ(info.name, kH100.name);
  EXPECT_EQ(info.problem, "");
  EXPECT_EQ(info.unused,
            "this build does not support GPU 0 (NVIDIA A100-SXM4-80GB, compute capability 8.0) and GPU 2 (NVIDIA B200, "
            "compute capability 10.0); it supports compute capability 9.0 (H100, H200)");
}

TEST(Gpus, NoneIsAProblemButNothingToWarnOf) {
  const CudaInfo info = supported_gpus({});
  EXPECT_EQ(info.problem, "no GPU: the driver reports none");
  EXPECT_EQ(info.unused, "");
}

TEST(Gpus, TheDriversFolderNamesThemWithoutCuda) {
  const TemporaryFolder folder;
  for (const char* bus : {"0000:19:00.0", "0000:3b:00.0"}) {
    std::filesystem::create_directories(folder.path("gpus") + "/" + bus);
    std::ofstream(folder.path("gpus") + "/" + bus + "/information")
        << "Model: \t\t NVIDIA L4\nIRQ:   \t\t 42\nGPU UUID: \t GPU-1\n";
  }
  std::filesystem::create_directories(folder.path("gpus") + "/0000:5e:00.0");  // without the file
  EXPECT_EQ(driver_gpus(folder.path("gpus")), (std::vector<std::string>{"NVIDIA L4", "NVIDIA L4"}));
  EXPECT_TRUE(driver_gpus(folder.path("absent")).empty());
}

}  // namespace gpus_test
}  // namespace hawser
