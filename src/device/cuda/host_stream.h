// Streams of a GPU's host (Device::make_host_stream), and how GPUs wait for them. For sources of the CUDA backends
// only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "device/device.h"

namespace hawser::cuda {

// Counts the events that a stream of the host has reached, in host memory that GPUs read.
class HostCounter {
 public:
  explicit HostCounter(int ordinal);
  ~HostCounter();
  HostCounter(const HostCounter&) = delete;

  void set(std::uint32_t count);
  void* on_device() const { return on_device_; }

 private:
  std::uint32_t* word_ = nullptr;
  void* on_device_ = nullptr;
};

// Reached when the counter is `count` or above, in the cyclic order of 32-bit numbers.
struct HostEvent : Event::State {
  Event of_cpu;  // of the host's thread
  std::shared_ptr<HostCounter> counter;
  std::uint32_t count = 0;

  void host_wait() override { hawser::host_wait(of_cpu); }
  bool host_wait_for(double seconds) override { return hawser::host_wait_for(of_cpu, seconds); }
};

// Its events are HostEvents. It may wait for these and for events of GPUs: its thread then blocks until they are
// reached.
std::unique_ptr<Stream> make_host_stream(const std::string& name, int ordinal, int threads);

}  // namespace hawser::cuda
