// Text of the progress line, as a function of its state: no clock, no terminal. progress.h draws it.
#pragma once

#include <cstdint>
#include <string>

#include "report/metrics.h"

namespace hawser::report {

struct BarState {
  std::int64_t step = 0, total = 0;
  bool measured = false;  // the numbers below are valid
  double loss = 0, grad_norm = 0, lr = 0, tokens_per_second = 0, seconds_left = 0;
  double epoch = 0;  // passes over the training data so far; 0: unknown
  std::int64_t memory_bytes = 0;
  std::string phase;  // "evaluating 3/20"; empty while training
  bool colour = false, unicode = false;
};

// The line is at most `columns` wide:
//   "step  120/1000  ━━━━━━────   12%  loss 3.2145  lr 2.00e-05  grad_norm 1.02  epoch 0.4/3  12.3K tok/s
//    1.25 GiB  ETA 3m 05s"
// On a narrow terminal the bar shrinks first; then the gradient norm, the learning rate, the percentage, the bar,
// memory, the epoch, tokens/s, the time left and the loss are dropped, in this order.
std::string bar_line(const BarState& state, int columns);

// "0.4/3": the epoch after `step`, and after `total` steps; "" if that is unknown or less than a tenth.
std::string epoch_text(double epoch, std::int64_t step, std::int64_t total);

// "step 120/1000  epoch 0.4/3  loss 3.2145  grad_norm 1.02  lr 2.00e-05  12.3K tokens/s  1.25 GiB  ETA 3m 05s"
std::string plain_line(const StepMetrics& metrics, std::int64_t total, double seconds_left);

// Terminal cells of a text: 0 for a colour sequence, 1 for a character.
int cells(const std::string& text);

}  // namespace hawser::report
