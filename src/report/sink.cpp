#include "report/sink.h"

#include <exception>

#include "base/cat.h"
#include "base/text.h"

namespace hawser::report {

void Sinks::warn(Place& place, const std::string& why) {
  if (place.warned) return;
  place.warned = true;
  log_(cat("hawser: warning: ", place.name, ": ", first_line(why), "; the run continues"));
}

void Sinks::add(const std::string& name, std::unique_ptr<Sink> sink) {
  places_.push_back({.name = name, .sink = std::move(sink)});
}

void Sinks::open(const std::string& name, const std::function<std::unique_ptr<Sink>()>& make) {
  Place place{.name = name};
  try {
    place.sink = make();
  } catch (const std::exception& error) {
    warn(place, cat(error.what(), "; disabled for this run"));
    return;
  }
  places_.push_back(std::move(place));
}

void Sinks::each(const std::function<void(Sink&)>& call, std::int64_t steps) {
  for (Place& place : places_) {
    try {
      call(*place.sink);
    } catch (const std::exception& error) {
      place.lost += steps;
      warn(place, error.what());
    }
    const std::string trouble = place.sink->trouble();
    if (!trouble.empty()) warn(place, trouble);
  }
}

void Sinks::step(const StepMetrics& metrics) {
  ++steps_;
  each([&](Sink& sink) { sink.step(metrics); }, 1);
}

void Sinks::finding(const Finding& finding) {
  each([&](Sink& sink) { sink.finding(finding); }, 0);
}

void Sinks::sync() {
  each([](Sink& sink) { sink.sync(); }, 0);
}

void Sinks::finish(Ending ending) {
  each([&](Sink& sink) { sink.finish(ending); }, 0);
  for (Place& place : places_) {
    const std::int64_t lost = place.lost + place.sink->lost();
    if (lost > 0) log_(cat("hawser: warning: ", place.name, ": ", lost, " of ", steps_, " steps were not written"));
  }
  places_.clear();
}

}  // namespace hawser::report
