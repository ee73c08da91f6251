#include "device/gpus.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/cat.h"
#include "base/error.h"
#include "base/testing/temporary_folder.h"

namespace hawser {
namespace gpus_test {

const GpuProperties kH100{"NVIDIA H100 80GB HBM3", 90};
const GpuProperties kA100{"NVIDIA A100-SXM4-80GB", 80};
const GpuProperties kB200{"NVIDIA B200", 100};
const GpuProperties kV100{"Tesla V100-SXM2-16GB", 70};

TEST(Gpus, AllAreUsedIfTheBuildSupportsThem) {
  const CudaInfo info = supported_gpus({kH100, kH100}, "90a");
  EXPECT_EQ(info.devices, 2);
  EXPECT_EQ(info.ordinals, (std::vector<int>{0, 1}));
  EXPECT_EQ(info.name, kH100.name);
  EXPECT_EQ(info.capability, 90);
  EXPECT_EQ(info.problem, "");
  EXPECT_EQ(info.unused, "");
}

TEST(Gpus, UnsupportedOnesAreNamedWithWhatTheBuildSupports) {
  const CudaInfo info = supported_gpus({kA100, kA100, kB200}, "90a");
  EXPECT_EQ(info.devices, 0);
  EXPECT_EQ(info.problem,
            "this build has no kernels for GPUs 0, 1 (NVIDIA A100-SXM4-80GB, compute capability 8.0) and GPU 2 (NVIDIA "
            "B200, compute capability 10.0), only for compute capability 9.0; build with -D "
            "HAWSER_CUDA_ARCHITECTURES=all");
  EXPECT_EQ(info.unused, info.problem);
}

// A workstation's display GPU may come before or after the one that trains.
TEST(Gpus, EveryGpuIsLookedAt) {
  const CudaInfo info = supported_gpus({kV100, kH100, kB200, kH100}, "80 90a");
  EXPECT_EQ(info.devices, 2);
  EXPECT_EQ(info.ordinals, (std::vector<int>{1, 3}));
  EXPECT_EQ(info.name, kH100.name);
  EXPECT_EQ(info.problem, "");
  EXPECT_EQ(
      info.unused,
      "this build has no kernels for GPU 2 (NVIDIA B200, compute capability 10.0), only for compute capability "
      "8.0 and 9.0; build with -D HAWSER_CUDA_ARCHITECTURES=all; GPUs without bf16 in tensor cores, which training "
      "needs: GPU 0 (Tesla V100-SXM2-16GB, compute capability 7.0)");
}

// Code runs on later GPUs of its generation, that of 90a on 9.0 alone.
TEST(Gpus, KernelsRunOnLaterGpusOfTheirGeneration) {
  const auto runs = [](int capability, const char* architectures) {
    return supported_gpus({{"GPU", capability}}, architectures).devices == 1;
  };
  EXPECT_TRUE(runs(86, "80"));
  EXPECT_FALSE(runs(80, "86"));
  EXPECT_FALSE(runs(90, "80 86 89"));
  EXPECT_TRUE(runs(103, "90a 100"));
  EXPECT_FALSE(runs(110, "100 120"));
  EXPECT_FALSE(runs(103, "100a"));
  for (const int capability : {80, 86, 87, 89, 90, 100, 103, 120, 121}) {
    EXPECT_TRUE(runs(capability, "80 86 89 90a 100 120")) << capability;
  }
}

// FP8 is possible if all GPUs of a run have it.
TEST(Gpus, TheLowestCapabilityCounts) {
  const CudaInfo info = supported_gpus({{"NVIDIA L40S", 89}, {"NVIDIA A40", 86}}, "80 86 89");
  EXPECT_EQ(info.devices, 2);
  EXPECT_EQ(info.capability, 86);
}

TEST(Gpus, KernelsOfEarlierGpusKeepTheirLimits) {
  const KernelLimits h200{.capability = 90, .block_shared_bytes = 227 << 10, .sm_shared_bytes = 228 << 10};
  EXPECT_EQ(limits_as(h200, "").capability, 90);
  EXPECT_EQ(limits_as(h200, "8.6").capability, 86);
  EXPECT_EQ(limits_as(h200, "8.6").block_shared_bytes, 99 << 10);
  EXPECT_EQ(limits_as(h200, "8.0").sm_shared_bytes, 164 << 10);
  for (const char* wrong : {"12.0", "86", "7.5"}) {
    try {
      limits_as(h200, wrong);
      ADD_FAILURE() << wrong;
    } catch (const UserError& error) {
      EXPECT_EQ(error.what(), cat("not a compute capability whose kernels this GPU can run (expected 8.0, 8.6, 8.9, "
                                  "9.0, got ",
                                  wrong, ") at HAWSER_CUDA_CAPABILITY"));
    }
  }
}

TEST(Gpus, NoneIsAProblemButNothingToWarnOf) {
  const CudaInfo info = supported_gpus({}, "90a");
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
