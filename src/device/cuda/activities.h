// What a GPU did when: kernels, copies and fills as CUPTI, the toolkit's tracing library, reports them. CUPTI is loaded
// when it is first asked for, so that a machine without it runs everything else.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/cuda/native.h"

namespace hawser::cuda {

struct Activity {
  enum class Kind { kernel, copy };  // copy: memory fills too
  Kind kind = Kind::kernel;
  std::string name;                 // a kernel's without namespaces, arguments and template arguments
  std::uint32_t stream = 0;         // CUPTI's number
  std::int64_t begin = 0, end = 0;  // ns of the system's real-time clock
  std::int64_t launched = 0;        // when the host's call that enqueued it began; 0: unknown
};

// Why nothing can be traced on this machine, as a sentence; empty where it can.
std::string activities_problem();

// One at a time in a process. Recording costs a microsecond or two a kernel.
class ActivityRecorder {
 public:
  ActivityRecorder();  // UserError with activities_problem()
  ~ActivityRecorder();
  ActivityRecorder(const ActivityRecorder&) = delete;
  ActivityRecorder& operator=(const ActivityRecorder&) = delete;

  // CUPTI's number of a stream.
  std::uint32_t stream_number(const CudaNative& native) const;
  void start();
  // All streams have been synchronized. UserError where CUPTI lost records.
  std::vector<Activity> stop();

 private:
  bool running_ = false;
};

}  // namespace hawser::cuda
