// The clock by which we say how long something took.
#pragma once

#include <chrono>

namespace hawser {

// Seconds from `begin` until now. Of the steady clock: no setting of the machine's time changes it.
inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace hawser
