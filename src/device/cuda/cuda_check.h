// HAWSER_CUDA_CHECK: turns errors of the CUDA runtime into InternalError. For sources of the CUDA backends only.
#pragma once

#include <cuda_runtime_api.h>

#include "base/error.h"

// Throws an InternalError with the call and the runtime's error if the call fails.
#define HAWSER_CUDA_CHECK(call)                                                                    \
  do {                                                                                             \
    const cudaError_t hawser_status = (call);                                                      \
    HAWSER_CHECK(hawser_status == cudaSuccess, #call, ": ", cudaGetErrorName(hawser_status), ": ", \
                 cudaGetErrorString(hawser_status));                                               \
  } while (false)
