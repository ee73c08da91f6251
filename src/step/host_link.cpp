#include "step/host_link.h"

#include <cstring>

namespace hawser::step {

HostLink::HostLink(Device& device, std::int64_t bytes)
    : bytes_(staged(bytes)), meta_(device.kind() == DeviceKind::meta) {
  if (!meta_) arena_ = Arena(device, kSlots * bytes_, Memory::host);
}

void HostLink::begin_step() {
  slot_ = (slot_ + 1) % kSlots;
  used_ = 0;
  host_wait(end_events_[static_cast<std::size_t>(slot_)]);
}

void HostLink::end_step(const Event& end) {
  end_events_[static_cast<std::size_t>(slot_)] = end;
}

std::byte* HostLink::take(std::int64_t bytes) {
  const std::int64_t at = used_;
  used_ += staged(bytes);
  HAWSER_CHECK(used_ <= bytes_, "a step stages ", used_, " bytes, planned ", bytes_);
  return meta_ ? nullptr : arena_.data() + slot_ * bytes_ + at;
}

void HostLink::upload(Stream& stream, const char* name, const TensorView& to, const void* from, std::int64_t bytes) {
  std::byte* slot = take(to.bytes());
  if (!meta_) {
    HAWSER_CHECK(bytes <= to.bytes(), name, ": ", bytes, " bytes for a buffer of ", to.bytes());
    if (bytes > 0) std::memcpy(slot, from, static_cast<std::size_t>(bytes));
    std::memset(slot + bytes, 0, static_cast<std::size_t>(to.bytes() - bytes));
  }
  transfer(stream, {.name = name, .kind = OpKind::transfer, .accesses = {writes(to)}}, to.raw(), slot, to.bytes());
}

const std::byte* HostLink::download(Stream& stream, const char* name, const TensorView& from) {
  std::byte* slot = take(from.bytes());
  transfer(stream, {.name = name, .kind = OpKind::transfer, .accesses = {reads(from)}}, slot, from.raw(), from.bytes());
  return slot;
}

}  // namespace hawser::step
