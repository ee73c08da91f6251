// The clock for durations, and wall-clock time.
#pragma once

#include <chrono>

namespace hawser {

// Seconds from `begin` until now, on the steady clock: setting the system time does not affect it.
inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Unix time in seconds, to the millisecond, of a time on the steady clock.
inline double unix_time(std::chrono::steady_clock::time_point at = std::chrono::steady_clock::now()) {
  using std::chrono::duration_cast, std::chrono::milliseconds, std::chrono::system_clock;
  const auto since = system_clock::now().time_since_epoch() - (std::chrono::steady_clock::now() - at);
  return static_cast<double>(duration_cast<milliseconds>(since).count()) / 1000;
}

}  // namespace hawser
