// `Progress`: progress of a run on standard error. One updated line on a terminal, plain lines elsewhere.
//
//   Progress progress({.total = recipe.train.steps, .terminal = terminal.is_terminal, .columns = terminal.columns});
//   progress.step(metrics);                // after each step
//   progress.message("checkpoint saved");  // complete lines, above the bar
//   progress.finish();
//
// Terminal: at most ten updates a second, each one write, never wider than the terminal; on a narrow one fields are
// left out, the least useful first. Plain: the first step, the last, and every log_every-th between, at most one per
// plain_interval so that a log stays readable. Members may be called from any thread. A closed pipe is no error (with
// SIGPIPE ignored). A reader that stands still, such as a paused terminal, does not hold up the run: a call waits a
// moment for it, then updates of the bar are left out, and beyond 1 MiB of text lines too, which a line reports later.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "io/background_output.h"
#include "report/bar.h"
#include "report/metrics.h"

namespace hawser::report {

struct ProgressOptions {
  std::int64_t total = 0;  // steps of the run
  std::int64_t first = 0;  // steps done before a resume
  std::int64_t log_every = 1;
  bool terminal = false;       // the cursor can be moved
  int columns = 80;            // of the terminal; queried at each update if `file` is the terminal itself
  double plain_seconds = 1.0;  // between plain lines at the start of a run
  int file = 2;                // a file descriptor
  // True ends finish()'s wait for a reader that stands still, after some seconds.
  std::function<bool()> stop_requested = [] { return false; };
};

// Seconds between plain lines, `elapsed` seconds into a run: a twentieth of `elapsed`, at least `min`, at most a minute
// (from twenty minutes on). 0 if `min` is 0.
double plain_interval(double elapsed, double min);

class Progress {
 public:
  // Reads NO_COLOR, TERM and the locale: no colour if NO_COLOR is set, ASCII if the locale is not UTF-8, plain lines on
  // a terminal that cannot move its cursor.
  explicit Progress(const ProgressOptions& options);
  ~Progress();  // finish()
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void set_total(std::int64_t total);  // before the first step
  void step(const StepMetrics& metrics);
  // What the run does before its first step, such as "reading weights": the bar on a terminal, else a line.
  void stage(const std::string& what);
  // Work outside of steps, such as "evaluating"; done == total ends it. Prints nothing in plain mode.
  void phase(const std::string& name, std::int64_t done, std::int64_t total);
  void message(const std::string& text);
  // Prints the bar's last state as a line, or removes it if there was no step. Later calls print messages and plain
  // lines. Waits until everything is written.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  void write(const std::string& text);
  void draw(bool at_once);        // the bar
  void write_line(bool at_once);  // the plain line
  int columns() const;

  ProgressOptions options_;
  io::BackgroundOutput output_;
  bool waits_ = true;      // for the reader; false while it stands still
  bool gave_up_ = false;   // finish() did
  std::int64_t lost_ = 0;  // messages that were not written
  std::mutex mutex_;
  BarState bar_;
  StepMetrics last_;
  double step_seconds_ = 0;  // smoothed, for the estimate of the time left
  std::int64_t printed_step_ = -1;
  bool drawn_ = false, shown_ = false;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point last_output_;
};

}  // namespace hawser::report
