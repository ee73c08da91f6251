// Functions of the CUDA driver, found through the runtime, so that nothing links the driver's library: a binary starts
// on machines without one. For sources of the cuda backends only.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace hawser::cuda {

// The driver's function `name` as of CUDA 12.0; null where this driver has none.
template <class Function>
Function* driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t status = cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found);
  const bool there = status == cudaSuccess && found == cudaDriverEntryPointSuccess;
  return there ? reinterpret_cast<Function*>(function) : nullptr;
}

}  // namespace hawser::cuda
