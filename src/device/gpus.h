// Which GPUs of a machine this build has kernels for. Without CUDA calls, so that it is tested on machines without GPUs.
//
//   supported_gpus({{"NVIDIA L40S", 89}}, "80 90a").devices  // 1: kernels for 8.0 run on 8.9
//
// Compute capabilities are numbers: 89 is 8.9, 120 is 12.0.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/device.h"

namespace hawser {

// Kernels need bf16 in tensor cores and asynchronous copies to shared memory.
constexpr int kLowestCapability = 80;
// Environment variable: limits_as().
constexpr const char* kCapabilityVariable = "HAWSER_CUDA_CAPABILITY";
// From here on, tensor cores multiply FP8.
constexpr int kFp8Capability = 89;

struct GpuProperties {
  std::string name;    // "NVIDIA H100 80GB HBM3"
  int capability = 0;  // compute capability
};

// What kernels may use on a GPU.
struct KernelLimits {
  int capability = 0;
  std::int64_t block_shared_bytes = 0;  // shared memory of a block, static and dynamic
  std::int64_t sm_shared_bytes = 0;     // of all blocks on an SM
};

// `gpu` as one of the earlier capability that `as` names, such as "8.6", so that tests run its kernels within its shared
// memory on a later GPU; `gpu` if `as` is empty. UserError if `as` names none, or a later one than the GPU's.
// Source of the sizes: CUDA C++ programming guide 13, "Technical specifications per compute capability".
KernelLimits limits_as(const KernelLimits& gpu, const std::string& as);

// Result of cuda_info() for the GPUs that CUDA lists, in its order. `architectures`: Build::cuda_architectures. Kernels
// for 8.6 run on 8.6 to 8.9, those for 90a on 9.0 alone.
CudaInfo supported_gpus(const std::vector<GpuProperties>& gpus, const std::string& architectures);

// "compute capability 8.0, 8.6 and 9.0": GPUs that a build for these architectures supports.
std::string architectures_text(const std::string& architectures);

// "8.9"
std::string capability_text(int capability);

// Names of the GPUs that the NVIDIA driver lists in its folder of /proc; needs neither CUDA nor nvidia-smi. Empty
// without a driver, or in a container that hides the folder.
std::vector<std::string> driver_gpus(const std::string& folder = "/proc/driver/nvidia/gpus");

// "GPU 0 (NVIDIA L4)", "GPUs 0, 1 (NVIDIA L4) and GPU 2 (NVIDIA T4)": labels[i] describes GPU i; GPUs with an empty
// label are left out.
std::string list_gpus(const std::vector<std::string>& labels);

}  // namespace hawser
