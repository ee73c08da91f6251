// A device whose streams' work is timed by name: on the CPU as it runs, on a GPU by events around it, which cost a few
// microseconds each and keep kernels from running back to back.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/cuda/time_mark.h"
#include "device/device.h"

namespace hawser::train {

// Seconds of work by its booked name.
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

class TimedDevice : public Device {
 public:
  explicit TimedDevice(std::unique_ptr<Device> inner) : inner_(std::move(inner)) {}
  DeviceKind kind() const override { return inner_->kind(); }
  std::unique_ptr<Stream> make_stream(const std::string& name) override;
  std::byte* allocate(std::int64_t bytes) override { return inner_->allocate(bytes); }
  void free(std::byte* data, std::int64_t bytes) noexcept override { inner_->free(data, bytes); }
  void set_allocator(const DeviceAllocator& allocator) override { inner_->set_allocator(allocator); }
  std::byte* allocate_host(std::int64_t bytes) override { return inner_->allocate_host(bytes); }
  void free_host(std::byte* data, std::int64_t bytes) noexcept override { inner_->free_host(data, bytes); }
  std::int64_t allocations() const override { return inner_->allocations(); }
  DeviceMemory memory() const override { return inner_->memory(); }

  WorkTimes times;

 private:
  std::unique_ptr<Device> inner_;
};

}  // namespace hawser::train
