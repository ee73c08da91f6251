// A device whose streams' work is timed by name: on the CPU as it runs, on a GPU by events around it, which cost a few
// microseconds each and keep kernels from running back to back.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/cuda/time_mark.h"
#include "device/forwarding_device.h"

namespace hawser::train {

// Seconds of work by its recorded name.
class WorkTimes {
 public:
  void add(const char* name, double seconds);
  void add(const char* name, std::unique_ptr<cuda::TimeMark> begin, std::unique_ptr<cuda::TimeMark> end);
  void clear();
  // All streams have been synchronized.
  std::map<std::string, double> seconds();

 private:
  struct Span {
    const char* name;
    std::unique_ptr<cuda::TimeMark> begin, end;
  };
  void settle();

  std::mutex mutex_;
  std::map<std::string, double> seconds_;
  std::vector<Span> spans_;
};

class TimedDevice : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  std::unique_ptr<Stream> make_stream(const std::string& name) override;

  WorkTimes times;
};

}  // namespace hawser::train
