#include "device/cuda/time_mark.h"

#include "device/cuda/cuda_check.h"

namespace hawser::cuda {

TimeMark::TimeMark(const CudaNative& native) {
  cudaEvent_t event = nullptr;
  HAWSER_CUDA_CHECK(cudaSetDevice(native.ordinal));
  HAWSER_CUDA_CHECK(cudaEventCreate(&event));
  event_ = event;
  HAWSER_CUDA_CHECK(cudaEventRecord(event, static_cast<cudaStream_t>(native.stream)));
}

TimeMark::~TimeMark() {
  cudaEventDestroy(static_cast<cudaEvent_t>(event_));
}

double TimeMark::seconds_since(const TimeMark& earlier) const {
  float ms = 0;
  HAWSER_CUDA_CHECK(
      cudaEventElapsedTime(&ms, static_cast<cudaEvent_t>(earlier.event_), static_cast<cudaEvent_t>(event_)));
  return ms * 1e-3;
}

}  // namespace hawser::cuda
