// `FrozenTime`: time in which this process did not run, by a thread that looks at its clock every few milliseconds. A
// job that was suspended as a whole (Slurm's gang scheduling, a paused container, Ctrl-Z) must not take the time for a
// rank that does not arrive.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>

namespace hawser::comm {

class FrozenTime {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kLongestLook{2};  // a busy machine delays a look by less
  static constexpr std::size_t kKept = 64;                // an operation sees fewer

  void look(Clock::time_point now) {
    if (last_ && now - *last_ > kLongestLook) {
      frozen_.push_back({*last_, now});
      if (frozen_.size() > kKept) frozen_.pop_front();
    }
    last_ = now;
  }

  // Between `started` and the last look. An operation may hand over its start only after the look that found the gap:
  // gaps are kept.
  Clock::duration since(Clock::time_point started) const {
    Clock::duration all{0};
    for (const Gap& gap : frozen_) all += std::max(gap.end - std::max(gap.begin, started), Clock::duration(0));
    return all;
  }

 private:
  struct Gap {
    Clock::time_point begin, end;
  };
  std::deque<Gap> frozen_;
  std::optional<Clock::time_point> last_;
};

}  // namespace hawser::comm
