#include "profile/timed_device.h"

#include <chrono>

#include "base/clock.h"
#include "profile/work_family.h"

namespace hawser::profile {

void WorkTimes::add(const std::string& family, double seconds) {
  const std::lock_guard lock(mutex_);
  seconds_[family] += seconds;
}

void WorkTimes::add(const std::string& family, std::unique_ptr<cuda::TimeMark> begin,
                    std::unique_ptr<cuda::TimeMark> end) {
  const std::lock_guard lock(mutex_);
  spans_.push_back({family, std::move(begin), std::move(end)});
}

void WorkTimes::clear() {
  const std::lock_guard lock(mutex_);
  seconds_.clear();
  spans_.clear();
}

std::map<std::string, double> WorkTimes::seconds() {
  const std::lock_guard lock(mutex_);
  settle();
  return seconds_;
}

void WorkTimes::settle() {
  for (const Span& span : spans_) seconds_[span.family] += span.end->seconds_since(*span.begin);
  spans_.clear();
}

namespace {

class TimedStream : public ForwardingStream {
 public:
  TimedStream(std::unique_ptr<Stream> inner, WorkTimes& times) : ForwardingStream(std::move(inner)), times_(times) {}
  void launch(OpRecord record, std::function<void()> work) override {
    std::string family = family_of(record);
    if (const CudaNative* native = inner_->native()) {
      auto begin = std::make_unique<cuda::TimeMark>(*native);
      inner_->launch(std::move(record), std::move(work));
      times_.add(family, std::move(begin), std::make_unique<cuda::TimeMark>(*native));
      return;
    }
    inner_->launch(std::move(record), [this, family = std::move(family), work = std::move(work)] {
      const auto start = std::chrono::steady_clock::now();
      work();
      times_.add(family, seconds_since(start));
    });
  }
  void call_host(OpRecord record, std::function<void()> work) override {
    inner_->call_host(std::move(record), std::move(work));
  }

 private:
  WorkTimes& times_;
};

}  // namespace

std::unique_ptr<Stream> TimedDevice::make_stream(const std::string& name) {
  return std::make_unique<TimedStream>(inner_->make_stream(name), times);
}

}  // namespace hawser::profile
