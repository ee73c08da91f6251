// Where a run stands, on standard error: one line that renews itself on a terminal, plain lines elsewhere.
//
//   Progress progress({.total = recipe.train.steps, .terminal = terminal.is_terminal, .columns = terminal.columns});
//   progress.step(metrics);               // after each step
//   progress.message("checkpoint saved"); // a whole line, above the bar
//   progress.finish();
//
// Terminal: at most ten updates a second, never wider than the terminal, each one write; fields are left out, the least
// useful first, where it is narrow. Plain: the first step, the last, and each log_every-th between, but at most one line
// in plain_seconds. Every member may be called from any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "report/metrics.h"

namespace hawser::report {

struct ProgressOptions {
  std::int64_t total = 0;    // steps of the run
  std::int64_t first = 0;    // steps done before (resumed)
  std::int64_t log_every = 1;
  bool terminal = false;     // may cursor movement be used?
  int columns = 80;          // of that terminal; asked anew at each update where `file` is the terminal itself
  bool colour = true;        // NO_COLOR and TERM=dumb are honoured all the same
  bool unicode = true;       // ASCII only where the locale is not UTF-8 all the same
  double plain_seconds = 1.0;
  int file = 2;              // a file descriptor
};

class Progress {
 public:
  explicit Progress(ProgressOptions options);
  ~Progress();  // finish()
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void step(const StepMetrics& metrics);
  // A phase apart from training, such as evaluation: "evaluating 3/20". done == total ends it.
  void phase(const std::string& name, std::int64_t done, std::int64_t total);
  // One or more whole lines; shown above the bar and kept.
  void message(const std::string& text);
  // Leaves the last state of the bar as a line of its own. Later calls print plain messages only.
  void finish();

 private:
  struct Renderer;
  void draw(bool at_once);
  void erase_and_write(const std::string& text);
  double eta() const;

  ProgressOptions options_;
  std::mutex mutex_;
  StepMetrics last_;
  bool stepped_ = false, finished_ = false, drawn_ = false;
  double smooth_seconds_ = 0, smooth_rate_ = 0;
  std::string phase_;
  std::int64_t phase_done_ = 0, phase_total_ = 0;
  std::chrono::steady_clock::time_point last_draw_;
};

// The bar for a state and a width: no control characters but colour. Pure; Progress draws it.
struct BarState {
  std::int64_t step = 0, total = 0;
  double loss = 0, tokens_per_second = 0, eta_seconds = 0;
  std::int64_t memory_bytes = 0;
  std::string phase;  // "evaluating 3/20", or empty
  bool colour = false, unicode = false;
};
std::string bar_line(const BarState& state, int columns);

// The plain line: "step 12/100  loss 3.2145  grad 1.02  lr 2.00e-05  12.3K tokens/s  1.25 GiB  ETA 3m 05s".
std::string plain_line(const StepMetrics& metrics, std::int64_t total, double eta_seconds);

}  // namespace hawser::report
