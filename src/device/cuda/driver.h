// CUDA driver functions, looked up through the runtime. Nothing links the driver library, so that the binary starts on
// machines without it. For sources of the CUDA backends only.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace hawser::cuda {

// The driver function `name` as of CUDA 12.0; null if this driver has none.
template <class Function>
Function* driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t status = cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found);
  const bool there = status == cudaSuccess && found == cudaDriverEntryPointSuccess;
  return there ? reinterpret_cast<Function*>(function) : nullptr;
}

}  // namespace hawser::cuda
