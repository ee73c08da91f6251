// `HostLink`: copies between host and device during steps, through pinned staging buffers that are reserved once. The
// host does not wait for them.
//
//   HostLink link(device, bytes);            // max bytes that one step stages, in both directions together
//   link.begin_step();
//   link.upload(stream, "load_batch", ids, numbers.data(), numbers.size() * 4);
//   const std::byte* sum = link.download(stream, "read_result", loss);   // read it in a later call_host
//   link.end_step(event);                    // the step's end
//
// The buffers are a ring of slots: the host fills a step's slot while the device still reads those of the two steps
// before. A slot is reused when the step that used it has ended.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "device/device.h"
#include "tensor/tensor.h"

namespace hawser::step {

class HostLink {
 public:
  static constexpr int kSlots = 3;  // two in-flight steps and one being filled

  // Reserves the slots; on meta it reserves nothing. The device outlives this.
  HostLink(Device& device, std::int64_t bytes);

  // Bytes of a slot that a view of `bytes` bytes takes.
  static std::int64_t staged(std::int64_t bytes) { return round_up(bytes, Device::kAlignment); }

  std::int64_t bytes() const { return kSlots * bytes_; }  // of pinned memory; on meta, as reserved elsewhere

  // Takes the next slot. Blocks the host while the step that used it is in flight.
  void begin_step();
  void end_step(const Event& end);

  // Enqueues a copy of `bytes` bytes to the beginning of the view (dense); the rest of the view is zeroed. `from` is
  // read before it returns, and not at all on meta.
  void upload(Stream& stream, const char* name, const TensorView& to, const void* from, std::int64_t bytes);
  // Enqueues a copy of the view (dense) to host memory and returns its address: valid from when the stream has reached
  // the copy until the slot is reused. Null on meta.
  const std::byte* download(Stream& stream, const char* name, const TensorView& from);

 private:
  std::byte* take(std::int64_t bytes);

  std::int64_t bytes_;
  bool meta_;
  Arena arena_;
  std::array<Event, kSlots> end_events_;
  int slot_ = 0;
  std::int64_t used_ = 0;
};

}  // namespace hawser::step
