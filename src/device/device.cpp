#include "device/device.h"

#include <cstring>
#include <utility>

#include "device/cuda/native.h"

namespace hawser {

const char* to_string(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::cpu:
      return "cpu";
    case DeviceKind::meta:
      return "meta";
    case DeviceKind::cuda:
      return "cuda";
  }
  return "?";
}

void host_wait(const Event& event) {
  if (event.state() != nullptr) event.state()->host_wait();
}

bool host_wait_for(const Event& event, double seconds) {
  return event.state() == nullptr || event.state()->host_wait_for(seconds);
}

namespace {

void copy_now(const CudaNative* native, void* to, const void* from, std::int64_t bytes) {
  if (native != nullptr) {
    cuda::copy_async(*native, to, from, bytes);
  } else {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
}

}  // namespace

void transfer(Stream& stream, OpRecord record, void* to, const void* from, std::int64_t bytes) {
  stream.launch(std::move(record), [native = stream.native(), to, from, bytes] { copy_now(native, to, from, bytes); });
}

void transfer(Stream& stream, void* to, const void* from, std::int64_t bytes) {
  transfer(stream, {.name = "transfer", .kind = OpKind::transfer}, to, from, bytes);
}

Arena::Arena(Device& device, std::int64_t bytes, Memory memory) : device_(&device), bytes_(bytes), memory_(memory) {
  if (bytes > 0) data_ = memory == Memory::host ? device.allocate_host(bytes) : device.allocate(bytes);
}

Arena::~Arena() {
  release();
}

void Arena::release() noexcept {
  if (data_ == nullptr) return;
  if (memory_ == Memory::host) {
    device_->free_host(data_, bytes_);
  } else {
    device_->free(data_, bytes_);
  }
}

Arena::Arena(Arena&& other) noexcept
    : device_(other.device_),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      memory_(other.memory_) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  if (this != &other) {
    release();
    device_ = other.device_;
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    memory_ = other.memory_;
  }
  return *this;
}

}  // namespace hawser
