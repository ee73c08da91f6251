#include <algorithm>

#include "base/error.h"
#include "device/device.h"

namespace hawser {

namespace {

struct MetaEvent : Event::State {
  int item = -1;
};

}  // namespace

class MetaStream : public Stream {
 public:
  MetaStream(MetaDevice& device, int index, std::string name)
      : device_(device), index_(index), name_(std::move(name)) {}

  DeviceKind kind() const override { return DeviceKind::meta; }
  DeviceKind target() const override { return device_.target_; }
  const std::string& name() const override { return name_; }

  void launch(OpRecord record, std::function<void()>) override {
    push({.kind = TraceItem::Kind::work, .record = std::move(record)});
  }

  Event record_event() override {
    auto state = std::make_shared<MetaEvent>();
    state->item = push({.kind = TraceItem::Kind::record_event});
    return Event(std::move(state));
  }

  void wait(const Event& event) override {
    if (event.state() == nullptr) return;
    const auto* state = dynamic_cast<const MetaEvent*>(event.state().get());
    HAWSER_CHECK(state != nullptr, "an event of another device");
    push({.kind = TraceItem::Kind::wait, .target = state->item});
  }

  void synchronize() override {}
  void check() override {}

 private:
  int push(TraceItem item) {
    item.stream = index_;
    item.instruction = device_.instruction_;
    std::vector<TraceItem>& items = device_.trace_.items;
    // Items are large: few moves are worth memory that is reserved and not touched.
    if (items.size() == items.capacity()) items.reserve(std::max<std::size_t>(1024, 4 * items.size()));
    items.push_back(std::move(item));
    return static_cast<int>(items.size()) - 1;
  }

  MetaDevice& device_;
  int index_;
  std::string name_;
};

std::unique_ptr<Stream> MetaDevice::make_stream(const std::string& name) {
  trace_.streams.push_back(name);
  return std::make_unique<MetaStream>(*this, static_cast<int>(trace_.streams.size()) - 1, name);
}

std::byte* MetaDevice::allocate(std::int64_t bytes) {
  HAWSER_CHECK(bytes > 0, "empty region");
  const std::uint64_t address = next_address_;
  // A gap between regions keeps a view that overruns one from overlapping the next.
  next_address_ += static_cast<std::uint64_t>(round_up(bytes + (1 << 20), 1 << 20));
  return reinterpret_cast<std::byte*>(address);  // NOLINT: a number, never dereferenced
}

}  // namespace hawser
