#include "step/replay.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "program/placement.h"
#include "step/executor.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace hawser::step {

void poison(std::byte* data, std::int64_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_poison_memory_region(data, static_cast<std::size_t>(bytes));
#else
  std::memset(data, 0xff, static_cast<std::size_t>(bytes));
#endif
}

void unpoison([[maybe_unused]] std::byte* data, [[maybe_unused]] std::int64_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(data, static_cast<std::size_t>(bytes));
#endif
}

ArenaGuard::ArenaGuard(const BufferPlan& plan, std::vector<std::vector<int>> items, const Arenas& arenas)
    : plan_(plan), items_(std::move(items)), arenas_(arenas), uses_(plan.buffers.size()) {
  for (const std::vector<int>& buffers : items_) {
    for (const int b : buffers) ++uses_[static_cast<std::size_t>(b)].accesses;
  }
}

std::byte* ArenaGuard::address(std::size_t buffer) const {
  return arenas_.of(plan_.buffers[buffer].space) + plan_.offset(static_cast<int>(buffer));
}

void ArenaGuard::begin(int item) {
  const std::lock_guard lock(mutex_);
  for (const int b : items_[static_cast<std::size_t>(item)]) {
    const auto index = static_cast<std::size_t>(b);
    if (uses_[index].begun++ == 0) unpoison(address(index), plan_.buffers[index].bytes);
  }
}

void ArenaGuard::end(int item) {
  const std::lock_guard lock(mutex_);
  for (const int b : items_[static_cast<std::size_t>(item)]) {
    const auto index = static_cast<std::size_t>(b);
    Use& use = uses_[index];
    if (++use.ended < use.accesses) continue;
    use.begun = use.ended = 0;  // for the next step
    if (!use.kept) poison(address(index), plan_.buffers[index].bytes);
  }
}

class ReplayStream : public ForwardingStream {
 public:
  ReplayStream(ReplayDevice& device, int index, std::unique_ptr<Stream> stream)
      : ForwardingStream(std::move(stream)), device_(device), index_(index) {}

  void launch(OpRecord record, std::function<void()> work) override {
    work = watched(record, std::move(work));
    inner_->launch(std::move(record), std::move(work));
  }
  void call_host(OpRecord record, std::function<void()> work) override {
    work = watched(record, std::move(work));
    inner_->call_host(std::move(record), std::move(work));
  }
  Event record_event() override {
    const int item = device_.record_event(index_);
    Event event = inner_->record_event();
    device_.recorded_[event.state().get()] = item;
    device_.held_.push_back(event);
    return event;
  }
  void wait(const Event& event) override {
    if (event.state() == nullptr) return;
    device_.wait(index_, event);
    inner_->wait(event);
  }

 private:
  // The work, checked against the plan's next item and guarded.
  std::function<void()> watched(const OpRecord& record, std::function<void()> work) {
    const int item = device_.work(index_, record);
    ArenaGuard* guard = device_.guard_.get();
    if (guard == nullptr) return work;
    return [guard, item, inner = std::move(work)] {
      guard->begin(item);
      inner();
      guard->end(item);
    };
  }

  ReplayDevice& device_;
  int index_;
};

ReplayDevice::ReplayDevice(Device& device, const ReplaySetup& setup) : ForwardingDevice(device), setup_(setup) {
  const Trace& trace = *setup.trace;
  const std::vector<program::Buffer>& buffers = setup.buffers->buffers;
  const program::BufferIndex index(buffers);
  accesses_.resize(trace.items.size());
  std::vector<std::vector<int>> touched(trace.items.size());
  std::vector<int> kept;
  for (std::size_t i = 0; i < trace.items.size(); ++i) {
    const OpRecord& record = trace.items[i].record;
    for (Access access : record.accesses) {
      const std::optional<int> found = index.find(access.address);
      HAWSER_CHECK(found.has_value(), record.name, " accesses memory outside of all buffers");
      const int b = *found;
      const program::Buffer& buffer = buffers[static_cast<std::size_t>(b)];
      const bool persistent = is_persistent(buffer.space);
      const std::byte* const state = buffer.space == program::Space::persistent ? setup.state : setup.host_state;
      const std::byte* base = persistent ? state : setup.arenas.of(buffer.space) + setup.buffers->offset(b);
      access.address = reinterpret_cast<std::uint64_t>(base) + (access.address - buffer.address);
      accesses_[i].push_back(access);
      if (persistent) continue;
      if (std::find(touched[i].begin(), touched[i].end(), b) == touched[i].end()) touched[i].push_back(b);
      if (record.kind == OpKind::keep) kept.push_back(b);
    }
  }
  if (!setup.guard || device.kind() != DeviceKind::cpu) return;  // a GPU's work runs asynchronously
  guard_ = std::make_unique<ArenaGuard>(*setup.buffers, std::move(touched), setup.arenas);
  for (const int b : kept) guard_->keep(b);
  poison(setup.arenas.device, setup.buffers->placement.bytes);
  if (setup.arenas.host != nullptr) poison(setup.arenas.host, setup.buffers->host_placement.bytes);
}

ReplayDevice::~ReplayDevice() {
  if (!guard_) return;
  unpoison(setup_.arenas.device, setup_.buffers->placement.bytes);
  if (setup_.arenas.host != nullptr) unpoison(setup_.arenas.host, setup_.buffers->host_placement.bytes);
}

std::unique_ptr<Stream> ReplayDevice::make_stream(const std::string& name) {
  const int index = streams_++;
  HAWSER_CHECK(static_cast<std::size_t>(index) < setup_.trace->streams.size() &&
                   setup_.trace->streams[static_cast<std::size_t>(index)] == name,
               "stream ", index, ", ", name, ", is not the plan's");
  return std::make_unique<ReplayStream>(*this, index, inner_->make_stream(name));
}

void ReplayDevice::begin_step() {
  next_ = 0;
  recorded_.clear();
  held_.clear();
}

void ReplayDevice::allow_waits(const std::vector<Event>& events) {
  foreign_ = events;
}

void ReplayDevice::end_step() {
  foreign_.clear();
  const std::size_t planned = setup_.trace->items.size();
  HAWSER_CHECK(static_cast<std::size_t>(next_) == planned, "the step ended after ", next_, " of the plan's ", planned,
               " items");
}

void ReplayDevice::reject(int item, const std::string& what) const {
  const auto index = static_cast<std::size_t>(item);
  const std::string planned =
      index < setup_.trace->items.size()
          ? cat(setup_.trace->items[index].record.name, " of instruction ", setup_.trace->items[index].instruction)
          : std::string("nothing");
  HAWSER_CHECK(false, "the step differs from its plan at item ", item, " (planned: ", planned, "): ", what);
}

int ReplayDevice::next(TraceItem::Kind kind, int stream, const char* name) {
  const int item = next_++;
  if (static_cast<std::size_t>(item) >= setup_.trace->items.size()) reject(item, cat(name, " after the plan's end"));
  const TraceItem& planned = setup_.trace->items[static_cast<std::size_t>(item)];
  if (planned.kind != kind || planned.stream != stream) {
    reject(item, cat(name, " on stream ", setup_.trace->streams[static_cast<std::size_t>(stream)]));
  }
  return item;
}

int ReplayDevice::work(int stream, const OpRecord& record) {
  const int item = next(TraceItem::Kind::work, stream, record.name);
  const OpRecord& planned = setup_.trace->items[static_cast<std::size_t>(item)].record;
  if (std::strcmp(planned.name, record.name) != 0) reject(item, record.name);
  if (planned.flops != record.flops) reject(item, cat(record.name, " with ", record.flops, " FLOPs"));
  const CollectiveNote &a = planned.collective, &b = record.collective;
  if (a.kind != b.kind || a.communicator != b.communicator || a.bytes != b.bytes || a.peer != b.peer) {
    reject(item, cat(record.name, " on ", b.communicator, " of ", b.bytes, " bytes"));
  }
  const std::vector<Access>& places = accesses_[static_cast<std::size_t>(item)];
  if (places.size() != record.accesses.size()) reject(item, cat(record.name, " with other accesses"));
  for (std::size_t i = 0; i < places.size(); ++i) {
    const Access &x = places[i], &y = record.accesses[i];
    if (x.address != y.address || x.row_bytes != y.row_bytes || x.rows != y.rows || x.stride != y.stride ||
        x.write != y.write) {
      reject(item, cat("access ", i, " of ", record.name, " is at another address"));
    }
  }
  return item;
}

int ReplayDevice::record_event(int stream) {
  return next(TraceItem::Kind::record_event, stream, "an event");
}

int ReplayDevice::wait(int stream, const Event& event) {
  const auto it = recorded_.find(event.state().get());
  if (it == recorded_.end()) {
    if (std::ranges::find(foreign_, event.state(), &Event::state) != foreign_.end()) return -1;
    // An event of the step before; allowed only at the beginning of this step.
    if (next_ != 0) reject(next_, "a wait for an event of another step");
    return -1;
  }
  const int item = next(TraceItem::Kind::wait, stream, "a wait");
  const int target = setup_.trace->items[static_cast<std::size_t>(item)].target;
  if (target != it->second) reject(item, cat("a wait for item ", it->second, ", not ", target));
  return item;
}

}  // namespace hawser::step
