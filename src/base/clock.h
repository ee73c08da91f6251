// The clock for durations.
#pragma once

#include <chrono>

namespace hawser {

// Seconds from `begin` until now, on the steady clock: setting the system time does not affect it.
inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace hawser
