// A moment on a stream of a GPU, by the GPU's own clock; for profiles, never for steps that are timed as a whole.
#pragma once

#include "device/cuda/native.h"

namespace hawser::cuda {

class TimeMark {
 public:
  // Records the moment behind all work enqueued so far.
  explicit TimeMark(const CudaNative& native);
  ~TimeMark();
  TimeMark(const TimeMark&) = delete;
  TimeMark& operator=(const TimeMark&) = delete;

  // Both have been reached: their streams were synchronized.
  double seconds_since(const TimeMark& earlier) const;

 private:
  void* event_ = nullptr;  // a cudaEvent_t
};

}  // namespace hawser::cuda
