#include "engine/host_copy.h"

#include <algorithm>
#include <cstring>

#include "engine/session.h"

namespace hawser::engine {

PinnedStagingBuffer::PinnedStagingBuffer(Device& device, Stream& stream, std::int64_t piece_bytes)
    : stream_(stream), piece_bytes_(piece_bytes), pinned_(device, 2 * piece_bytes, Memory::host) {}

void PinnedStagingBuffer::fetch(const TensorView& from, std::byte* to) {
  HAWSER_CHECK(from.dense(), "a view with gaps: ", from.text());
  Event retired[2];
  const std::int64_t pieces = ceil_div(from.bytes(), piece_bytes_);
  for (std::int64_t i = 0; i <= pieces; ++i) {
    if (i < pieces) {
      const std::int64_t begin = i * piece_bytes_, count = std::min(piece_bytes_, from.bytes() - begin);
      transfer(stream_, {.name = "fetch", .kind = OpKind::transfer, .accesses = {reads(from)}},
               pinned_.data() + i % 2 * piece_bytes_, from.raw() + begin, count);
      retired[i % 2] = stream_.record_event();
    }
    if (i == 0) continue;
    const std::int64_t begin = (i - 1) * piece_bytes_, count = std::min(piece_bytes_, from.bytes() - begin);
    host_wait(retired[(i - 1) % 2]);
    std::memcpy(to + begin, pinned_.data() + (i - 1) % 2 * piece_bytes_, static_cast<std::size_t>(count));
  }
  stream_.check();
}

void PinnedStagingBuffer::send(const TensorView& to, const Fill& fill) {
  HAWSER_CHECK(to.dense(), "a view with gaps: ", to.text());
  Event left[2];
  for (std::int64_t i = 0, begin = 0; begin < to.bytes(); ++i, begin += piece_bytes_) {
    const std::int64_t count = std::min(piece_bytes_, to.bytes() - begin);
    std::byte* piece = pinned_.data() + i % 2 * piece_bytes_;
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
  const auto add = [&](std::optional<int> flat, const std::string& prefix, const TensorView& view,
                       const nn::Granularity& granularity = {}) {
    parts.push_back({.flat = flat, .prefix = prefix, .device = view, .host = view, .granularity = granularity});
  };
  const auto kind = session.state().options().optimizer;
  for (int f = 0; f < static_cast<int>(session.model().flats().size()); ++f) {
    const step::FlatState& flat = session.state().flat(f);
    if (!flat.held || (!scope.frozen && !session.model().flat(f).spec().trainable)) continue;
    add(f, "", flat.stored);
    if (!flat.scales.empty() && (scope.scales || !flat.quantized_after_updates())) {
      add(f, "scale/", flat.scales, nn::kScaleGranularity);
    }
    if (!scope.optimizer || flat.slots.empty()) continue;
    const std::vector<optim::StateSlot> slots = kind->slots(session.model().flat(f));
    for (std::size_t slot = 0; slot < flat.slots.size(); ++slot) {
      add(f, cat(optim::kStatePrefix, slots[slot].name, "/"), flat.slots[slot], slots[slot].granularity);
      parts.back().of_weights = slots[slot].of_weights;
    }
  }
  if (scope.scales) {
    for (const step::StateTable& table : session.state().tables()) add(std::nullopt, table.name, table.view);
  }
  return parts;
}

std::int64_t place_copies(std::vector<StatePart>& parts, std::byte* at, PartsToCopy which) {
  std::int64_t bytes = 0;
  for (StatePart& part : parts) {
    if (which == PartsToCopy::of_device && part.on_host()) continue;
    if (at != nullptr) {
      part.host = TensorView(at + bytes, part.device.dtype(), part.device.shape(), DeviceKind::cpu);
    }
    bytes += round_up(part.device.bytes(), Device::kAlignment);
  }
  return bytes;
}

namespace {

// The first rank of each copy of the model saves a table.
NamedState table_state(Session& session, const StatePart& part, StatesFor use) {
  const Shape shape = part.device.shape();
  NamedState table{.name = part.prefix, .shape = shape, .dtype = part.device.dtype(), .boxes = {}};
  if (use == StatesFor::save && session.mesh().model().index() != 0) return table;
  table.boxes.push_back({.offset = Shape{0}, .extent = shape, .view = part.host});
  return table;
}

}  // namespace

std::vector<NamedState> named_states(Session& session, const std::vector<StatePart>& parts, StatesFor use) {
  std::vector<NamedState> states;
  for (const StatePart& part : parts) {
    if (!part.flat) {
      states.push_back(table_state(session, part, use));
      continue;
    }
    const step::FlatState& flat = session.state().flat(*part.flat);
    if (use == StatesFor::save && !flat.first_stage) continue;
    for (NamedState& state : nn::value_states(session.model().flat(*part.flat), part.granularity, flat.begin,
                                              flat.count, part.host, part.prefix, use == StatesFor::load)) {
      if (part.of_weights) state.former_names.push_back(state.name.substr(part.prefix.size()));
      states.push_back(std::move(state));
    }
  }
  return states;
}

HostCopy::HostCopy(Session& session, StateScope scope) : session_(session), parts_(state_parts(session, scope)) {
  const std::int64_t bytes = place_copies(parts_, nullptr, PartsToCopy::of_device);
  if (bytes == 0) return;
  memory_ = make_cpu_device();  // pages are allocated when they are first written
  arena_ = Arena(*memory_, bytes);
  place_copies(parts_, arena_.data(), PartsToCopy::of_device);
}

void HostCopy::fetch() {
  session_.synchronize();
  if (arena_.bytes() == 0) return;
  PinnedStagingBuffer staging(session_.device(), session_.stream());
  for (const StatePart& part : parts_) {
    if (!part.on_host()) staging.fetch(part.device, part.host.raw());
  }
}

void HostCopy::store() {
  session_.synchronize();
  if (arena_.bytes() == 0) return;
  PinnedStagingBuffer staging(session_.device(), session_.stream());
  for (const StatePart& part : parts_) {
    if (part.on_host()) continue;
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
