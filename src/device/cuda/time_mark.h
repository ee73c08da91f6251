// `TimeMark`: a timed CUDA event, for profiles, not for end-to-end step times.
#pragma once

#include "device/cuda/native.h"

namespace hawser::cuda {

class TimeMark {
 public:
  // Records the event after all work enqueued so far.
  explicit TimeMark(const CudaNative& native);
  ~TimeMark();
  TimeMark(const TimeMark&) = delete;
  TimeMark& operator=(const TimeMark&) = delete;

  // GPU time since `earlier`. Both streams must have been synchronized.
  double seconds_since(const TimeMark& earlier) const;

 private:
  void* event_ = nullptr;  // a cudaEvent_t
};

}  // namespace hawser::cuda
