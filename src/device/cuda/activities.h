// GPU activity: kernels, copies and fills with their times, as recorded by CUPTI. CUPTI is loaded at the first use, so
// that everything else runs without it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/cuda/native.h"

namespace hawser::cuda {

struct Activity {
  enum class Kind { kernel, copy };  // copy: includes memory fills
  Kind kind = Kind::kernel;
  std::string name;                 // of a kernel: without namespaces, arguments and template arguments
  std::uint32_t stream = 0;         // CUPTI's stream id
  std::int64_t begin = 0, end = 0;  // ns, system real-time clock
  std::int64_t launched = 0;        // start of the host call that enqueued it; 0: unknown
};

// Why tracing is not possible on this machine, as a sentence; empty if it is.
std::string activities_problem();

// One at a time per process. Recording costs 1 to 2 us per kernel.
class ActivityRecorder {
 public:
  ActivityRecorder();  // throws UserError with activities_problem()
  ~ActivityRecorder();
  ActivityRecorder(const ActivityRecorder&) = delete;
  ActivityRecorder& operator=(const ActivityRecorder&) = delete;

  // CUPTI's id of a stream.
  std::uint32_t stream_number(const CudaNative& native) const;
  void start();
  // Call after synchronizing all streams. UserError if CUPTI dropped records.
  std::vector<Activity> stop();

 private:
  bool running_ = false;
};

}  // namespace hawser::cuda
