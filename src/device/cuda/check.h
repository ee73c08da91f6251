// Turns what the CUDA runtime returns into our errors. For sources of the cuda backends only.
#pragma once

#include <cuda_runtime_api.h>

#include "base/error.h"

// The call succeeds, or an InternalError says what it was and what the runtime said.
#define HAWSER_CUDA_CHECK(call)                                                                    \
  do {                                                                                             \
    const cudaError_t hawser_status = (call);                                                      \
    HAWSER_CHECK(hawser_status == cudaSuccess, #call, ": ", cudaGetErrorName(hawser_status), ": ", \
                 cudaGetErrorString(hawser_status));                                               \
  } while (false)
