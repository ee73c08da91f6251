// What goes between host and device in a step, without the host waiting: through pinned memory that is reserved once.
//
//   HostLink link(device, bytes);            // the most that one step stages, up and down together
//   link.begin_step();
//   link.upload(stream, "load_batch", ids, numbers.data(), numbers.size() * 4);
//   const std::byte* sum = link.download(stream, "read_result", loss);   // to be read by a call_host behind it
//   link.end_step(event);                    // the step's end
//
// A ring of slots: the host fills a step's slot while the device still reads those of the two before. A slot is taken
// again when the end of the step that had it has been reached.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "device/device.h"
#include "tensor/tensor.h"

namespace hawser::step {

class HostLink {
 public:
  static constexpr int kSlots = 3;  // two steps on their way and one being filled

  // Reserves the slots; on meta nothing. The device outlives this.
  HostLink(Device& device, std::int64_t bytes);

  // Bytes of a slot that a view of so many bytes takes.
  static std::int64_t staged(std::int64_t bytes) { return round_up(bytes, Device::kAlignment); }

  // Takes the next slot. Blocks the host where the step that had it is still on its way.
  void begin_step();
  void end_step(const Event& end);

  // Enqueues `bytes` bytes to the beginning of the view (dense); the rest of it becomes zero. `from` is read now; it is
  // not read on meta.
  void upload(Stream& stream, const char* name, const TensorView& to, const void* from, std::int64_t bytes);
  // Enqueues the view (dense) to host memory and returns where: valid when the stream has got there, until the slot is
  // taken again. Null on meta.
  const std::byte* download(Stream& stream, const char* name, const TensorView& from);

 private:
  std::byte* take(std::int64_t bytes);

  std::int64_t bytes_;
  bool meta_;
  Arena arena_;
  std::array<Event, kSlots> ends_;
  int slot_ = 0;
  std::int64_t used_ = 0;
};

}  // namespace hawser::step
