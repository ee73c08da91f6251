// `Rules`: rules that watch training. A finding names what looks wrong in the numbers of a step, and what to try.
//
//   Rules rules({.steps = 1000, .warmup_steps = 100, .peak_learning_rate = 3e-4});
//   for (const Finding& finding : rules.step(metrics)) print(finding);
//
// A rule reports once when its condition begins, and again only after the condition ended. Steps without targets are
// skipped.
//
//   exploding gradients  begins: norm > 10 x median of the 100 norms before it (at least 20 are needed)
//                        ends:   20 norms in a row are at most 3 x that median
//   vanishing gradients  begins: median of the last 20 norms is 0, or < 1/1000 of the highest such median so far, while
//                                the loss is at least 1/10 of the mean of the first 20 steps
//                        ends:   that median > 1/100 of the highest
//   loss not falling     begins: two blocks of steps in a row each have a mean loss not below that of the block before,
//                                after warmup and with the learning rate at least half its peak
//                        ends:   the mean loss of a block is below all earlier ones
//                        block:  100 steps, or a tenth of the run if that is more
//   overfitting          begins: two evaluations in a row are each above the one before, the last is more than 1% above
//                                the lowest, and the mean training loss since the evaluation before is below that at
//                                the lowest
//                        ends:   a new lowest validation loss
//   not a number         loss or gradient norm is not finite; the run ends
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "report/metrics.h"

namespace hawser::report {

inline constexpr const char* kNotANumber = "not a number";

struct RulesOptions {
  std::int64_t steps = 0;  // of the run
  std::int64_t warmup_steps = 0;
  double peak_learning_rate = 0;
  double gradient_clip = 0;  // 0: none
};

class Rules {
 public:
  explicit Rules(const RulesOptions& options);
  // Findings that begin with this step. `metrics.findings` is not read.
  std::vector<Finding> step(const StepMetrics& metrics);

 private:
  struct Block {
    double sum = 0;
    std::int64_t steps = 0;
    double mean() const { return sum / static_cast<double>(steps); }
  };
  void gradients(const StepMetrics& metrics);
  void falling(const StepMetrics& metrics);
  void overfitting(const StepMetrics& metrics);
  void find(std::int64_t step, const char* rule, std::string text) { found_.push_back({step, rule, std::move(text)}); }

  RulesOptions options_;
  std::vector<Finding> found_;

  std::deque<double> norms_;  // of the last steps
  bool exploding_ = false, vanishing_ = false;
  int calm_ = 0;  // steps since the norm was high
  double highest_norm_ = 0;

  std::int64_t block_steps_;
  Block first_, block_;  // the run's first 20 steps; the current block
  std::optional<double> block_before_, lowest_block_;
  int blocks_not_falling_ = 0;
  bool not_falling_ = false;

  Block since_evaluation_;
  std::optional<double> lowest_validation_, last_validation_, train_at_lowest_;
  int rises_ = 0;
  bool overfit_ = false;
};

// Detects a stall: no step for 10 x the median time of the last 50 steps, and at least 30 s. Separate from Rules,
// because it is polled between steps.
class StallRule {
 public:
  void step(double seconds);
  // `waited`: seconds since the current step began. Reports at most once per step.
  std::optional<Finding> waiting(std::int64_t step, double waited);

 private:
  std::deque<double> seconds_;
  std::int64_t printed_ = -1;
};

// The upper of the two middle values for an even number of values, so that the result is a measured value. 0 if empty.
double median(std::deque<double> values);

}  // namespace hawser::report
