#include "device/device.h"

#include <utility>

namespace hawser {

const char* to_string(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::cpu:
      return "cpu";
    case DeviceKind::meta:
      return "meta";
  }
  return "?";
}

Arena::Arena(Device& device, std::int64_t bytes)
    : device_(&device), data_(bytes > 0 ? device.allocate(bytes) : nullptr), bytes_(bytes) {}

Arena::~Arena() {
  if (data_ != nullptr) device_->free(data_, bytes_);
}

Arena::Arena(Arena&& other) noexcept
    : device_(other.device_), data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  if (this != &other) {
    if (data_ != nullptr) device_->free(data_, bytes_);
    device_ = other.device_;
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

}  // namespace hawser
