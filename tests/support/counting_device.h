// `CountingDevice`: counts the bytes of host memory and of memory of the device that are allocated on a device.
#pragma once

#include <memory>
#include <string>

#include "device/forwarding_device.h"

namespace hawser::testing {

class CountingDevice : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  std::unique_ptr<Stream> make_stream(const std::string& name) override { return inner_->make_stream(name); }
  std::byte* allocate(std::int64_t bytes) override {
    device += bytes;
    return ForwardingDevice::allocate(bytes);
  }
  std::byte* allocate_host(std::int64_t bytes) override {
    host += bytes;
    return ForwardingDevice::allocate_host(bytes);
  }
  std::int64_t host = 0, device = 0;
};

}  // namespace hawser::testing
