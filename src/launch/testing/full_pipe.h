// For tests: fills a pipe, so that the next write to it blocks.
#pragma once

#include <fcntl.h>
#include <unistd.h>

namespace hawser {

inline void fill(int pipe) {
  fcntl(pipe, F_SETFL, O_NONBLOCK);
  while (write(pipe, "x", 1) == 1) continue;
  fcntl(pipe, F_SETFL, 0);
}

}  // namespace hawser
