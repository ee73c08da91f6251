// `Divergence`: whether training has made a model worse than it was at the start.
//
//   Divergence divergence({.steps = 1000, .uniform_loss = std::log(vocabulary)});
//   divergence.validated(0, 10.89);
//   if (const auto text = divergence.step(14.1, 510)) print(*text);
//   if (divergence.now()) ...                           // it lasts
//
// All losses are nats per target. Steps without targets do not count.
//
//   windows  W steps, a quarter of the run, at least 8 and at most 20, and more if these have fewer than 200 targets
//   start    the mean R and the standard deviation S of the losses of the first window
//   begins   - in any step from the second one on: the mean loss of the latest steps, as many as have 200 targets, is
//              more than 1.2 x the larger of R and U, the loss of a model that gives each token the same probability
//            - the mean loss of the latest window, which has no step of the first, is above R by more than R / 4 and
//              6 S sqrt(1 / steps of the latest + 1 / steps of the first)
//            - in an evaluation: the validation loss is above that before training by more than a tenth of it and 0.1,
//              while the training loss does not fall (with a falling one, the model overfits, or the data are others)
//   falls    the mean loss of the latest window is below R; before there are two windows: that of the later steps is
//            below 0.95 x that of the earlier ones
//   ends     the training loss falls, and the last validation loss, if there is one, is below that before training or
//            was what began it
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "report/metrics.h"

namespace hawser::report {

inline constexpr const char* kDiverged = "diverged";  // Finding::rule

struct DivergenceOptions {
  std::int64_t steps = 0;   // of the run
  double uniform_loss = 0;  // U, the logarithm of the number of tokens or classes
};

class Divergence {
 public:
  explicit Divergence(const DivergenceOptions& options);

  // What the step shows if training diverges from there on, and what to try. `loss` is finite.
  std::optional<std::string> step(double loss, std::int64_t targets);
  // The same for the evaluation after a step; step 0: before training.
  std::optional<std::string> validated(std::int64_t step, double loss);
  // The same for a step of an earlier process of this run, and for its evaluations.
  void replay(const StepMetrics& metrics);

  bool now() const { return diverged_; }

 private:
  struct Step {
    double loss = 0;
    std::int64_t targets = 0;
  };
  double latest_mean() const;
  bool falls() const;
  std::optional<std::string> worse_than_uniform() const;
  std::optional<std::string> worse_than_at_start() const;
  std::optional<std::string> begin(const std::string& what);

  DivergenceOptions options_;
  std::size_t window_;         // W
  std::vector<double> start_;  // losses of the first window, without those after which training diverged
  std::deque<Step> latest_;    // the latest window; while there are too few steps for one, all of them
  std::int64_t start_targets_ = 0, latest_targets_ = 0, counted_ = 0;
  std::optional<double> first_validation_, last_validation_;
  bool diverged_ = false, by_validation_ = false;  // what began it
};

}  // namespace hawser::report
