// What the CUDA driver says about itself and about the links between the GPUs of this machine.
#pragma once

#include <string>
#include <vector>

namespace hawser::cuda {

struct GpuLink {
  int from = 0, to = 0;
  bool access = false;          // `from` can read and write the memory of `to`
  bool native_atomics = false;  // as over NVLink, not over PCIe
};

struct GpuLinks {
  std::string driver_version, runtime_version;  // of CUDA: "13.0"; the driver's is the newest that it can run
  std::vector<GpuLink> pairs;                   // every pair, from < to
};

// All empty where there is no GPU, or no CUDA in this build. Makes no context on any GPU.
GpuLinks gpu_links();

}  // namespace hawser::cuda
