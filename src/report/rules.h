// `Rules`: rules that watch training. A finding names what looks wrong in the numbers of a step, and what to try.
//
//   Rules rules({.steps = 1000, .warmup_steps = 100, .peak_learning_rate = 3e-4});
//   for (const Finding& finding : rules.step(metrics)) print(finding);
//
// A rule reports once when its condition begins, and again only after the condition ended. Loss and norm of a step
// without targets are ignored, and so is a step with an overflow under a loss scale. "norm" is the gradient norm before
// clipping. The medians are rolling: each step has its own.
//
//   exploding gradients  begins: norm > 10 x M, where M is the median of the 100 norms before this step (at the start
//                                of a run, of at least 20) and not 0
//                        ends:   20 steps in a row have norm <= 3 x M, each with its own M
//   vanishing gradients  begins: the median of the last 20 norms, with this step's, is 0 or < 1/1000 of the highest
//                                such median so far, while the loss is at least 1/10 of the mean loss of the first 20
//                                steps
//                        ends:   that median is > 1/100 of the highest
//   loss not falling     block:  100 steps, or a tenth of the run if that is more; blocks start after warmup
//                        begins: two blocks in a row each have a mean loss not below that of the block before, and end
//                                with a learning rate of at least half its peak
//                        ends:   the mean loss of a block is below those of all earlier blocks
//                        In a run that ends before three blocks, the last step reports it: if the last validation loss
//                        is not below 0.999 x that before training, or, without validation, if the mean loss of the
//                        last third of at least 30 steps is not below that of the first third
//   overfitting          begins: the validation loss has risen in two evaluations in a row, is more than 1% above the
//                                lowest, and the mean training loss since the previous evaluation is below its value at
//                                the evaluation with the lowest validation loss
//                        ends:   a new lowest validation loss
//   diverged             report/divergence.h, which RunWatch adds: it decides how the run ends, also without rules
//   not a number         loss or norm is not finite: NaN or infinity; reported at every such step, without the other
//                        rules. The training loop ends the run.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "report/metrics.h"

namespace hawser::report {

// Values of Finding::rule.
inline constexpr const char* kNotANumber = "not a number";  // means "not finite"
inline constexpr const char* kNotFalling = "loss not falling";

struct RulesOptions {
  std::int64_t steps = 0;  // of the run
  std::int64_t warmup_steps = 0;
  double peak_learning_rate = 0;
  // The maximum norm after clipping. No condition depends on it: without it, the text of "exploding gradients" suggests
  // optimizer.gradient_clip=1.
  std::optional<double> gradient_clip;
};

// The rules that were not tested in these steps with targets and these evaluations after steps, with what they need:
// "overfitting (3 evaluations)".
std::vector<std::string> untested_rules(const RulesOptions& options, std::int64_t steps, std::int64_t evaluations);

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
  void gradients(const StepMetrics& metrics);  // exploding and vanishing
  void falling(const StepMetrics& metrics);
  void fallen_at_all(const StepMetrics& metrics);  // of a short run's last step
  void overfitting(const StepMetrics& metrics);
  void add_finding(std::int64_t step, const char* rule, std::string text) {
    found_.push_back({step, rule, std::move(text)});
  }

  RulesOptions options_;
  std::vector<Finding> found_;  // by this step

  std::deque<double> norms_;  // of the last 100 steps
  bool exploding_ = false, vanishing_ = false;
  int calm_ = 0;  // steps in a row with norm <= 3 x median
  double highest_median_norm_ = 0;

  std::int64_t block_steps_;
  Block first_, block_;                                // the run's first 20 steps; the current block
  std::optional<double> block_before_, lowest_block_;  // mean losses
  int blocks_not_falling_ = 0;
  bool not_falling_ = false;
  std::vector<double> losses_;  // of a short run
  std::optional<double> initial_validation_;

  Block since_evaluation_;  // training losses
  std::optional<double> lowest_validation_, last_validation_;
  std::optional<double> train_at_lowest_;  // mean training loss before the evaluation with the lowest validation loss
  int rises_ = 0;                          // evaluations in a row with a higher loss than the one before
  bool overfit_ = false;
};

// Detects a stall: no step ends for 10 x the median time of the last 50 steps (at least 3 are needed), and at least
// 30 s. Separate from Rules, because it is polled while a step runs.
class StallRule {
 public:
  void step(double seconds);  // a step ended that took `seconds`
  // `waited`: seconds since the current step, number `step`, began. Reports at most once per step.
  std::optional<Finding> waiting(std::int64_t step, double waited);

 private:
  std::deque<double> seconds_;  // of the last 50 steps
  std::int64_t printed_ = -1;   // the last step reported
};

// The median, always one of the values: the upper of the two middle ones if their number is even. 0 if empty.
double median(std::deque<double> values);

}  // namespace hawser::report
