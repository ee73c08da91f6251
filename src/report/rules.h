// Rules that watch training: what looks wrong in the numbers of the steps, each with what to try.
//
//   Rules rules({.steps = 1000, .warmup_steps = 100, .peak_learning_rate = 3e-4});
//   for (const Finding& finding : rules.step(metrics)) say(finding);
//
// Each rule speaks once when what it watches for begins, and again only after that was over. Steps without targets are
// passed over.
//
//   exploding gradients  the norm is above 10 x the median of the 100 norms before it (20 at least)
//                        over: 20 norms in a row below 3 x that median
//   vanishing gradients  the median of the last 20 norms is below 1/1000 of the highest such median before, or 0, while
//                        the loss is above a tenth of what it began with
//                        over: that median is back above 1/100 of the highest
//   loss not falling     with the learning rate at half its peak or more, after warm-up: the mean loss of neither of
//   two
//                        blocks of steps in a row is below that of the block before. A block: 100 steps, or a tenth of
//                        the run where that is more
//                        over: a block's mean is below all earlier ones'
//   overfitting          two evaluations in a row are each above the one before, the last by 1% above the lowest, while
//                        the mean training loss since is below what it was at the lowest
//                        over: a new lowest validation loss
//   not a number         loss or norm is not finite: the run ends
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
  // What begins to look wrong with this step. `metrics.findings` is not read.
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

  std::deque<double> norms_;  // of the last steps that did not explode
  bool exploding_ = false, vanishing_ = false;
  int calm_ = 0;  // steps since the norm was high
  double highest_norm_ = 0;

  std::int64_t block_steps_;
  Block first_, block_;  // the run's first steps; the one that goes on
  std::optional<double> block_before_, lowest_block_;
  int blocks_not_falling_ = 0;
  bool not_falling_ = false;

  Block since_evaluation_;
  std::optional<double> lowest_validation_, last_validation_, train_at_lowest_;
  int rises_ = 0;
  bool overfit_ = false;
};

// How long without a step is a stall: 10 x the median time of the last 50 steps, 30 s at least. Kept apart from Rules:
// it is asked while no step comes.
class StallRule {
 public:
  void step(double seconds);
  // `waited`: seconds since the step on its way began. Speaks once a step.
  std::optional<Finding> waiting(std::int64_t step, double waited);

 private:
  std::deque<double> seconds_;
  std::int64_t printed_ = -1;
};

// Of an even number the upper of the two in the middle: a value that was measured. 0 of none.
double median(std::deque<double> values);

}  // namespace hawser::report
