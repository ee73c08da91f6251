// `TimedDevice`: a device that measures the time of its streams' work by family (work_family.h). The CPU times the work
// itself. On a GPU events around each piece of work cost a few microseconds and keep kernels from running back to back.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/cuda/time_mark.h"
#include "device/forwarding_device.h"

namespace hawser::profile {

// Seconds of work by family.
class WorkTimes {
 public:
  void add(const std::string& family, double seconds);
  void add(const std::string& family, std::unique_ptr<cuda::TimeMark> begin, std::unique_ptr<cuda::TimeMark> end);
  void clear();
  // Call after all streams are synchronized.
  std::map<std::string, double> seconds();

 private:
  struct Span {
    std::string family;
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

}  // namespace hawser::profile
