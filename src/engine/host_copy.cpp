#include "engine/host_copy.h"

#include <algorithm>
#include <cstring>

#include "engine/session.h"
#include "models/weights.h"

namespace hawser::engine {

PinnedStagingBuffer::PinnedStagingBuffer(Device& device, Stream& stream)
    : stream_(stream), pinned_(device, 2 * kStagingBytes, Memory::host) {}

void PinnedStagingBuffer::fetch(const TensorView& from, std::byte* to) {
  HAWSER_CHECK(from.dense(), "a view with gaps: ", from.text());
  Event retired[2];
  const std::int64_t pieces = ceil_div(from.bytes(), kStagingBytes);
  for (std::int64_t i = 0; i <= pieces; ++i) {
    if (i < pieces) {
      const std::int64_t begin = i * kStagingBytes, count = std::min(kStagingBytes, from.bytes() - begin);
      transfer(stream_, {.name = "fetch", .kind = OpKind::transfer, .accesses = {reads(from)}},
               pinned_.data() + i % 2 * kStagingBytes, from.raw() + begin, count);
      retired[i % 2] = stream_.record_event();
    }
    if (i == 0) continue;
    const std::int64_t begin = (i - 1) * kStagingBytes, count = std::min(kStagingBytes, from.bytes() - begin);
    host_wait(retired[(i - 1) % 2]);
    std::memcpy(to + begin, pinned_.data() + (i - 1) % 2 * kStagingBytes, static_cast<std::size_t>(count));
  }
  stream_.check();
}

void PinnedStagingBuffer::send(const TensorView& to, const Fill& fill) {
  HAWSER_CHECK(to.dense(), "a view with gaps: ", to.text());
  Event left[2];
  for (std::int64_t i = 0, begin = 0; begin < to.bytes(); ++i, begin += kStagingBytes) {
    const std::int64_t count = std::min(kStagingBytes, to.bytes() - begin);
    std::byte* piece = pinned_.data() + i % 2 * kStagingBytes;
    host_wait(left[i % 2]);
    fill(piece, begin, count);
    transfer(stream_, {.name = "send", .kind = OpKind::transfer, .accesses = {writes(to)}}, to.raw() + begin, piece,
             count);
    left[i % 2] = stream_.record_event();
  }
  stream_.synchronize();
}

std::vector<StatePart> state_parts(Session& session, StateScope scope) {
  std::vector<StatePart> parts;
  const auto add = [&](int flat, const std::string& prefix, const TensorView& view, bool scales = false) {
    parts.push_back({.flat = flat, .prefix = prefix, .device = view, .host = view, .scales = scales});
  };
  const auto kind = session.state().options().optimizer;
  for (int f = 0; f < static_cast<int>(session.model().flats().size()); ++f) {
    const step::FlatState& flat = session.state().flat(f);
    if (!scope.frozen && !session.model().flat(f).spec().trainable) continue;
    add(f, "", flat.stored);
    if (!flat.scales.empty()) add(f, "scale/", flat.scales, true);
    if (!scope.optimizer || flat.slots.empty()) continue;
    const std::vector<optim::StateSlot> slots = kind->slots(session.model().flat(f));
    for (std::size_t slot = 0; slot < flat.slots.size(); ++slot) {
      add(f, cat("optimizer/", slots[slot].name, "/"), flat.slots[slot]);
    }
  }
  return parts;
}

std::int64_t place_copies(std::vector<StatePart>& parts, std::byte* at) {
  std::int64_t bytes = 0;
  for (StatePart& part : parts) {
    if (at != nullptr) {
      part.host = TensorView(at + bytes, part.device.dtype(), part.device.shape(), DeviceKind::cpu);
    }
    bytes += round_up(part.device.bytes(), Device::kAlignment);
  }
  return bytes;
}

namespace {

// A scale is saved by the rank that saves its parameter's first element.
std::vector<NamedState> scale_states(const nn::Flat& flat, const step::FlatState& state, const StatePart& part,
                                     StatesFor use) {
  std::vector<NamedState> states;
  for (int p = 0; p < static_cast<int>(flat.params().size()); ++p) {
    const nn::Param& param = flat.params()[static_cast<std::size_t>(p)];
    for (const nn::Segment& segment : param.segments) {
      HAWSER_CHECK(segment.slice.extent == 0, param.name, ": scales of slices are not saved yet");
    }
    const bool owner = flat.offset(p) >= state.begin && flat.offset(p) < state.begin + state.count;
    const Shape shape = flat.scale_shape(p);
    NamedState scale{.name = part.prefix + param.name, .shape = shape, .dtype = DType::f32, .boxes = {}};
    if (owner || use == StatesFor::load) {
      Shape offset = shape;
      for (int dim = 0; dim < shape.rank(); ++dim) offset[dim] = 0;
      scale.boxes.push_back({.offset = offset, .extent = shape, .view = flat.scale_view(part.host, p)});
    }
    states.push_back(std::move(scale));
  }
  return states;
}

}  // namespace

std::vector<NamedState> named_states(Session& session, const std::vector<StatePart>& parts, StatesFor use) {
  std::vector<NamedState> states;
  for (const StatePart& part : parts) {
    const step::FlatState& flat = session.state().flat(part.flat);
    if (part.scales) {
      for (NamedState& state : scale_states(session.model().flat(part.flat), flat, part, use)) {
        states.push_back(std::move(state));
      }
      continue;
    }
    for (NamedState& state :
         models::flat_states(session.model(), part.flat, flat.begin, flat.count, part.host, part.prefix)) {
      states.push_back(std::move(state));
    }
  }
  return states;
}

HostCopy::HostCopy(Session& session, StateScope scope) : session_(session), parts_(state_parts(session, scope)) {
  if (session.device().kind() == DeviceKind::cpu) return;
  memory_ = make_cpu_device();  // pages are allocated when they are first written
  arena_ = Arena(*memory_, place_copies(parts_, nullptr));
  place_copies(parts_, arena_.data());
}

void HostCopy::fetch() {
  session_.synchronize();
  if (memory_ == nullptr) return;
  PinnedStagingBuffer staging(session_.device(), session_.stream());
  for (const StatePart& part : parts_) staging.fetch(part.device, part.host.raw());
}

void HostCopy::store() {
  session_.synchronize();
  if (memory_ == nullptr) return;
  PinnedStagingBuffer staging(session_.device(), session_.stream());
  for (const StatePart& part : parts_) {
    staging.send(part.device, [&](std::byte* piece, std::int64_t begin, std::int64_t count) {
      std::memcpy(piece, part.host.raw() + begin, static_cast<std::size_t>(count));
    });
  }
}

std::vector<NamedState> HostCopy::states(StatesFor use) const {
  return named_states(session_, parts_, use);
}

std::vector<float> values_of(Session& session, const TensorView& view) {
  session.synchronize();
  std::vector<float> values(static_cast<std::size_t>(view.elements()));
  HAWSER_CHECK(view.dtype() == DType::f32 && view.dense(), "values of ", view.text());
  PinnedStagingBuffer(session.device(), session.stream()).fetch(view, reinterpret_cast<std::byte*>(values.data()));
  return values;
}

}  // namespace hawser::engine
