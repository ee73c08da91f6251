#include "report/phase_clock.h"

#include <algorithm>

namespace hawser::report {
namespace {

double seconds(PhaseClock::Clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

void add(std::vector<std::pair<std::string, double>>& totals, const std::string& kind, double time) {
  const auto found = std::ranges::find(totals, kind, &std::pair<std::string, double>::first);
  if (found != totals.end()) {
    found->second += time;
  } else {
    totals.emplace_back(kind, time);
  }
}

}  // namespace

void PhaseClock::enter(const std::string& kind, const std::string& text, Clock::time_point now) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!kind_.empty()) add(totals_, kind_, seconds(now - since_));
  kind_ = kind;
  text_ = text;
  since_ = now;
}

PhaseClock::Now PhaseClock::now(Clock::time_point now) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return {kind_, text_, kind_.empty() ? 0 : seconds(now - since_)};
}

std::vector<std::pair<std::string, double>> PhaseClock::totals(Clock::time_point now) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto out = totals_;
  if (!kind_.empty()) add(out, kind_, seconds(now - since_));
  return out;
}

}  // namespace hawser::report
