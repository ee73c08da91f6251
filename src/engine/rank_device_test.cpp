#include "engine/rank_device.h"

#include <gtest/gtest.h>

namespace hawser::engine {
namespace rank_device_test {

Recipe with(DeviceChoice device) {
  Recipe recipe;
  recipe.run.device = device;
  return recipe;
}

TEST(UnusedGpus, TheCpuIsNotUsedInSilence) {
  const CudaInfo info{.problem = "p", .unused = "this build does not support GPU 0 (NVIDIA L4)"};
  EXPECT_EQ(unused_gpus(with(DeviceChoice::automatic), info),
            "the run uses the CPU: this build does not support GPU 0 (NVIDIA L4); --device cpu runs without this "
            "warning");
  EXPECT_EQ(unused_gpus(with(DeviceChoice::cpu), info), "");
}

TEST(FewConnections, AreNoticed) {
  EXPECT_EQ(few_connections("1"),
            "CUDA_DEVICE_MAX_CONNECTIONS=1 makes communication and computation wait for each other: unset it");
  for (const char* value : {"", "8", "32", "many", "99999999999999999999"})
    EXPECT_EQ(few_connections(value), "") << value;
}

TEST(UnusedGpus, OneUnsupportedGpuIsNamedBesideTheUsedOnes) {
  const CudaInfo info{
      .devices = 1, .ordinals = {1}, .name = "NVIDIA H200", .unused = "this build does not support GPU 0 (NVIDIA L4)"};
  EXPECT_EQ(unused_gpus(with(DeviceChoice::automatic), info),
            "some GPUs stay idle: this build does not support GPU 0 (NVIDIA L4)");
}

TEST(UnusedGpus, NothingIsSaidIfAllAreUsedOrNoneIsThere) {
  EXPECT_EQ(unused_gpus(with(DeviceChoice::automatic), {.devices = 2, .ordinals = {0, 1}}), "");
  EXPECT_EQ(unused_gpus(with(DeviceChoice::automatic), {.problem = "no GPU"}), "");
}

}  // namespace rank_device_test
}  // namespace hawser::engine
