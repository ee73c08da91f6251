// Which GPUs of a machine this build has code for. Without CUDA calls, so that it is tested on machines without GPUs.
#pragma once

#include <string>
#include <vector>

#include "device/device.h"

namespace hawser {

struct GpuProperties {
  std::string name;          // "NVIDIA H100 80GB HBM3"
  int major = 0, minor = 0;  // compute capability
};

// Result of cuda_info() for the GPUs that CUDA lists, in its order. The cubins of this build run on compute capability
// 9.0 only.
CudaInfo supported_gpus(const std::vector<GpuProperties>& gpus);

// Names of the GPUs that the NVIDIA driver lists in its folder of /proc; needs neither CUDA nor nvidia-smi. Empty
// without a driver, or in a container that hides the folder.
std::vector<std::string> driver_gpus(const std::string& folder = "/proc/driver/nvidia/gpus");

// "GPU 0 (NVIDIA L4)", "GPUs 0, 1 (NVIDIA L4) and GPU 2 (NVIDIA T4)": labels[i] describes GPU i; GPUs with an empty
// label are left out.
std::string list_gpus(const std::vector<std::string>& labels);

}  // namespace hawser
