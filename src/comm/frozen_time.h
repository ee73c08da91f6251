// `FrozenTime`: time in which this process did not run, by a thread that looks at its clock every few milliseconds. A
// job that was suspended as a whole (Slurm's gang scheduling, a paused container, Ctrl-Z) must not take the time for a
// rank that does not arrive.
#pragma once

#include <chrono>
#include <optional>

namespace hawser::comm {

class FrozenTime {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kLongestLook{2};  // a busy machine delays a look by less

  // Since the last look; zero if the process ran.
  Clock::duration look(Clock::time_point now) {
    const Clock::duration gap = last_ ? now - *last_ : Clock::duration(0);
    last_ = now;
    return gap > kLongestLook ? gap : Clock::duration(0);
  }
  void reset() { last_.reset(); }  // the thread waits for work

 private:
  std::optional<Clock::time_point> last_;
};

}  // namespace hawser::comm
