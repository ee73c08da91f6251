// What a run is at, and how long it has been at what.
#pragma once

#include <chrono>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace hawser::report {

// Members may be called from any thread.
class PhaseClock {
 public:
  using Clock = std::chrono::steady_clock;

  // `text` is what is done from now on: "saving step 12". `kind` is what its time counts as: "saving".
  void enter(const std::string& kind, const std::string& text, Clock::time_point now = Clock::now());

  struct Now {
    std::string kind, text;
    double seconds = 0;  // since it was entered
  };
  Now now(Clock::time_point now = Clock::now()) const;
  // Seconds by kind, in the order in which they first came.
  std::vector<std::pair<std::string, double>> totals(Clock::time_point now = Clock::now()) const;

 private:
  mutable std::mutex mutex_;
  std::string kind_, text_;
  Clock::time_point since_;
  std::vector<std::pair<std::string, double>> totals_;
};

}  // namespace hawser::report
