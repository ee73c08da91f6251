#include "device/cuda/links.h"

#include "base/cat.h"
#include "device/cuda/cuda_check.h"

namespace hawser::cuda {
namespace {

std::string version_text(int version) {
  return cat(version / 1000, ".", version % 1000 / 10);
}

}  // namespace

GpuLinks gpu_links() {
  GpuLinks out;
  int version = 0, devices = 0;
  if (cudaDriverGetVersion(&version) == cudaSuccess && version > 0) out.driver_version = version_text(version);
  if (cudaRuntimeGetVersion(&version) == cudaSuccess) out.runtime_version = version_text(version);
  if (cudaGetDeviceCount(&devices) != cudaSuccess) {
    cudaGetLastError();
    return out;
  }
  for (int from = 0; from < devices; ++from) {
    for (int to = from + 1; to < devices; ++to) {
      int access = 0, atomics = 0;
      HAWSER_CUDA_CHECK(cudaDeviceGetP2PAttribute(&access, cudaDevP2PAttrAccessSupported, from, to));
      HAWSER_CUDA_CHECK(cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, from, to));
      out.pairs.push_back({from, to, access != 0, atomics != 0});
    }
  }
  return out;
}

}  // namespace hawser::cuda
