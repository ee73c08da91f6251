// `BusDevice`: a CPU device that has a PCI bus id, as a GPU has, for tests with a fake NVML.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "device/forwarding_device.h"

namespace hawser {

class BusDevice : public ForwardingDevice {
 public:
  explicit BusDevice(std::string bus_id) : ForwardingDevice(make_cpu_device()), bus_id_(std::move(bus_id)) {}
  std::unique_ptr<Stream> make_stream(const std::string& name) override { return inner_->make_stream(name); }
  std::string bus_id() const override { return bus_id_; }

 private:
  std::string bus_id_;
};

}  // namespace hawser
