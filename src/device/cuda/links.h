// CUDA versions, and the peer access between the GPUs of this machine.
#pragma once

#include <string>
#include <vector>

namespace hawser::cuda {

struct GpuLink {
  int from = 0, to = 0;
  bool access = false;          // `from` can read and write the memory of `to`
  bool native_atomics = false;  // true over NVLink, false over PCIe
};

struct GpuLinks {
  std::string driver_version, runtime_version;  // of CUDA: "13.0"; driver: the newest it supports
  std::vector<GpuLink> pairs;                   // every pair, from < to
};

// All empty if there is no GPU or no CUDA in this build. Creates no context on any GPU.
GpuLinks gpu_links();

}  // namespace hawser::cuda
