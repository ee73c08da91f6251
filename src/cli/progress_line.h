// `ProgressLine`: the progress of a command on standard error: one updated line on a terminal, elsewhere a line every
// few seconds.
#pragma once

#include <chrono>
#include <cstdio>
#include <string>

#include "base/cat.h"
#include "launch/launcher_environment.h"

namespace hawser::cli {

class ProgressLine {
 public:
  // `between`: from one line to the next, if they are not on a terminal. `draws`: false for the same on a terminal.
  explicit ProgressLine(std::chrono::milliseconds between = std::chrono::seconds(5), bool draws = true)
      : between_(between) {
    terminal_.is_terminal = terminal_.is_terminal && draws;
  }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  // Leaves the last line on a terminal.
  ~ProgressLine() {
    if (drawn_) std::fputs("\n", stderr);
  }

  // Whether to show a line now: a caller need not compute others. Without a terminal the last one, with which the work
  // is complete, is not shown: the result follows.
  bool due(bool last = false) const { return terminal_.is_terminal || (!last && Clock::now() - shown_ >= between_); }

  void show(const std::string& line) {
    shown_ = Clock::now();
    drawn_ = terminal_.is_terminal;
    const auto columns = static_cast<std::size_t>(terminal_.columns);
    std::fputs((drawn_ ? cat("\r\033[K", line.substr(0, columns)) : line + "\n").c_str(), stderr);
    std::fflush(stderr);
  }

  // Erases the line of a terminal.
  void erase() {
    if (drawn_) std::fputs("\r\033[K", stderr);
    drawn_ = false;
  }

 private:
  using Clock = std::chrono::steady_clock;

  std::chrono::milliseconds between_;
  Terminal terminal_ = user_terminal();
  Clock::time_point shown_ = Clock::now();
  bool drawn_ = false;
};

}  // namespace hawser::cli
