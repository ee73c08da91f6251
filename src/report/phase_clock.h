// `PhaseClock`: the current phase of a run, and the time spent in each kind of phase.
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

  // Starts a phase. `text` describes it: "saving step 12". `kind` is the total it counts to: "saving".
  void enter(const std::string& kind, const std::string& text, Clock::time_point now = Clock::now());

  struct Now {
    std::string kind, text;
    double seconds = 0;  // since enter()
  };
  Now now(Clock::time_point now = Clock::now()) const;
  // Seconds by kind, in order of first appearance.
  std::vector<std::pair<std::string, double>> totals(Clock::time_point now = Clock::now()) const;

 private:
  mutable std::mutex mutex_;
  std::string kind_, text_;
  Clock::time_point since_;
  std::vector<std::pair<std::string, double>> totals_;
};

}  // namespace hawser::report
