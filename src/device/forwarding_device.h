// `ForwardingDevice`, `ForwardingStream`: bases for wrappers that observe work. They forward everything to another
// device or stream, except make_stream, launch and call_host.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "device/device.h"

namespace hawser {

class ForwardingDevice : public Device {
 public:
  explicit ForwardingDevice(std::unique_ptr<Device> inner) : owned_(std::move(inner)), inner_(owned_.get()) {}
  explicit ForwardingDevice(Device& inner) : inner_(&inner) {}  // outlives this

  DeviceKind kind() const override { return inner_->kind(); }
  std::byte* allocate(std::int64_t bytes) override { return inner_->allocate(bytes); }
  void free(std::byte* data, std::int64_t bytes) noexcept override { inner_->free(data, bytes); }
  void set_allocator(const DeviceAllocator& allocator) override { inner_->set_allocator(allocator); }
  std::byte* allocate_host(std::int64_t bytes) override { return inner_->allocate_host(bytes); }
  void free_host(std::byte* data, std::int64_t bytes) noexcept override { inner_->free_host(data, bytes); }
  std::int64_t allocations() const override { return inner_->allocations(); }
  DeviceMemory memory() const override { return inner_->memory(); }
  std::string bus_id() const override { return inner_->bus_id(); }

 private:
  std::unique_ptr<Device> owned_;

 protected:
  Device* inner_;
};

class ForwardingStream : public Stream {
 public:
  explicit ForwardingStream(std::unique_ptr<Stream> inner) : inner_(std::move(inner)) {}

  DeviceKind kind() const override { return inner_->kind(); }
  DeviceKind target() const override { return inner_->target(); }
  const std::string& name() const override { return inner_->name(); }
  const CudaNative* native() const override { return inner_->native(); }
  Event record_event() override { return inner_->record_event(); }
  void wait(const Event& event) override { inner_->wait(event); }
  void synchronize() override { inner_->synchronize(); }
  void check() override { inner_->check(); }

 protected:
  std::unique_ptr<Stream> inner_;
};

}  // namespace hawser
