#include "report/rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/cat.h"
#include "base/units.h"

namespace hawser::report {
namespace {

constexpr std::size_t kNorms = 100, kFewestNorms = 20;
constexpr double kExploded = 10, kCalm = 3;
constexpr int kCalmSteps = 20;
constexpr double kVanished = 1e-3, kBack = 1e-2, kLossLeft = 0.1;
constexpr std::int64_t kFirstSteps = 20;
constexpr std::int64_t kBlock = 100;
constexpr double kHighRate = 0.5;
constexpr int kBlocks = 2, kRises = 2;
constexpr std::int64_t kFewestSteps = 30;  // of a short run without validation
constexpr double kFallen = 0.999;
constexpr double kOverfit = 0.01, kLeastRise = 0.02;  // of the validation loss; small sets differ by less, in nats
constexpr std::size_t kTimes = 50, kFewestTimes = 3;
constexpr double kStall = 10, kShortestStall = 30;

void push(std::deque<double>& values, double value, std::size_t max) {
  values.push_back(value);
  if (values.size() > max) values.pop_front();
}

}  // namespace

double median(std::deque<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

namespace {

std::int64_t block_steps(const RulesOptions& options) {
  return std::max(kBlock, options.steps / 10);
}

// Whether the run ends before the rule kNotFalling can compare its blocks.
bool is_short(const RulesOptions& options) {
  return options.steps < options.warmup_steps + (1 + kBlocks) * block_steps(options);
}

}  // namespace

std::vector<std::string> untested_rules(const RulesOptions& options, std::int64_t steps, std::int64_t evaluations) {
  std::vector<std::string> out;
  const auto need = [&](const char* rule, std::int64_t least, std::int64_t found, const char* what) {
    if (found < least) out.push_back(cat(rule, " (", least, " ", what, ")"));
  };
  need("diverged", 2, steps, "steps");
  need("exploding gradients", kFewestNorms + 1, steps, "steps");
  need("vanishing gradients", kFewestNorms, steps, "steps");
  if (!is_short(options)) {
    need(kNotFalling, options.warmup_steps + (1 + kBlocks) * block_steps(options), steps, "steps");
  } else if (evaluations == 0) {
    need(kNotFalling, kFewestSteps, steps, "steps");
  }
  need("overfitting", 1 + kRises, evaluations, "evaluations");
  return out;
}

Rules::Rules(const RulesOptions& options) : options_(options), block_steps_(block_steps(options)) {}

std::vector<Finding> Rules::step(const StepMetrics& m) {
  found_.clear();
  if (m.targets > 0 && !m.overflow) {
    if (!std::isfinite(m.loss) || !std::isfinite(m.grad_norm)) {
      add_finding(
          m.step, kNotANumber,
          "loss or gradient is not finite; try a lower optimizer.learning_rate or a longer optimizer.warmup_steps");
      return std::move(found_);
    }
    gradients(m);
    falling(m);
  }
  overfitting(m);
  if (is_short(options_)) fallen_at_all(m);
  return std::move(found_);
}

void Rules::gradients(const StepMetrics& m) {
  const double usual = median(norms_);
  const bool known = norms_.size() >= kFewestNorms && usual > 0;
  const bool high = known && m.grad_norm > kExploded * usual;
  if (high && !exploding_) {
    exploding_ = true;
    add_finding(
        m.step, "exploding gradients",
        fmt::format("the gradient norm is {:.3g}, {:.0f} times its median {:.3g}; try a lower optimizer.learning_rate, "
                    "a longer optimizer.warmup_steps{}, or check the data of this step",
                    m.grad_norm, m.grad_norm / usual, usual,
                    options_.gradient_clip ? "" : ", optimizer.gradient_clip=1"));
  }
  calm_ = known && m.grad_norm > kCalm * usual ? 0 : calm_ + 1;
  if (calm_ >= kCalmSteps) exploding_ = false;
  // A single high norm does not move the median; a lasting one does.
  push(norms_, m.grad_norm, kNorms);

  if (norms_.size() < kFewestNorms) return;
  const double now = median({norms_.end() - static_cast<std::ptrdiff_t>(kFewestNorms), norms_.end()});
  highest_median_norm_ = std::max(highest_median_norm_, now);
  const bool learned = first_.steps > 0 && m.loss < kLossLeft * first_.mean();
  if (!vanishing_ && !learned && (now == 0 || now < kVanished * highest_median_norm_)) {
    vanishing_ = true;
    add_finding(m.step, "vanishing gradients",
                fmt::format("the gradient norm fell from {1:.3g} to {0:.3g} while the loss is {2:.4g}; try a lower "
                            "optimizer.learning_rate (large weights may saturate activations), or "
                            "precision.compute=float32",
                            now, highest_median_norm_, m.loss));
  }
  if (now > kBack * highest_median_norm_) vanishing_ = false;
}

void Rules::falling(const StepMetrics& m) {
  if (first_.steps < kFirstSteps) first_ = {first_.sum + m.loss, first_.steps + 1};
  if (m.step <= options_.warmup_steps) return;
  block_ = {block_.sum + m.loss, block_.steps + 1};
  if (block_.steps < block_steps_) return;
  const double mean = block_.mean();
  block_ = {};
  const bool high_rate = m.lr >= kHighRate * options_.peak_learning_rate;
  const bool fell = !block_before_ || mean < *block_before_;
  blocks_not_falling_ = fell || !high_rate ? 0 : blocks_not_falling_ + 1;
  if (!lowest_block_ || mean < *lowest_block_) {
    lowest_block_ = mean;
    not_falling_ = false;
  }
  if (blocks_not_falling_ >= kBlocks && !not_falling_) {
    not_falling_ = true;
    const bool rose = mean > first_.mean();
    add_finding(
        m.step, kNotFalling,
        fmt::format("the mean loss of the last {} steps is {:.4f}, not below the lowest earlier mean {:.4f}; try {}",
                    block_steps_, mean, *lowest_block_,
                    rose ? "a lower optimizer.learning_rate"
                         : "a lower optimizer.learning_rate or a larger train.global_batch_size, and check that the "
                           "labels match the text"));
  }
  block_before_ = mean;
}

void Rules::fallen_at_all(const StepMetrics& m) {
  if (m.initial_validation_loss) initial_validation_ = m.initial_validation_loss->all;
  if (m.targets > 0) losses_.push_back(m.loss);
  if (m.step != options_.steps) return;
  if (initial_validation_ && m.validation_loss) {
    if (m.validation_loss->all < kFallen * *initial_validation_) return;
    add_finding(m.step, kNotFalling,
                fmt::format("the validation loss is {:.4f}, and before training it was {:.4f}; try more train.steps, "
                            "another optimizer.learning_rate, and check that the labels match the text",
                            m.validation_loss->all, *initial_validation_));
    return;
  }
  const std::size_t third = losses_.size() / 3;
  if (static_cast<std::int64_t>(losses_.size()) < kFewestSteps) return;
  const auto mean = [&](std::size_t begin) {
    double sum = 0;
    for (std::size_t i = begin; i < begin + third; ++i) sum += losses_[i];
    return sum / static_cast<double>(third);
  };
  const double first = mean(0), last = mean(losses_.size() - third);
  if (last < first) return;
  add_finding(m.step, kNotFalling,
              fmt::format("the mean loss of the last {} steps is {:.4f}, and of the first {} it was {:.4f}; try more "
                          "train.steps, another optimizer.learning_rate, and check that the labels match the text",
                          third, last, third, first));
}

void Rules::overfitting(const StepMetrics& m) {
  if (m.targets > 0) since_evaluation_ = {since_evaluation_.sum + m.loss, since_evaluation_.steps + 1};
  if (!m.validation_loss || since_evaluation_.steps == 0) return;
  const double validation = m.validation_loss->all, train = since_evaluation_.mean();
  since_evaluation_ = {};
  rises_ = last_validation_ && validation > *last_validation_ ? rises_ + 1 : 0;
  last_validation_ = validation;
  if (!lowest_validation_ || validation < *lowest_validation_) {
    lowest_validation_ = validation;
    train_at_lowest_ = train;
    overfit_ = false;
  }
  const double rise = validation - *lowest_validation_;
  const bool worse = rise > std::max(kOverfit * *lowest_validation_, kLeastRise) && train < *train_at_lowest_;
  if (rises_ >= kRises && worse && !overfit_) {
    overfit_ = true;
    add_finding(
        m.step, "overfitting",
        fmt::format("the validation loss rose from {1:.4f} to {0:.4f} while the training loss fell from {2:.4f} to "
                    "{3:.4f}; try fewer train.steps, more data, or a higher optimizer.weight_decay; an earlier "
                    "checkpoint may be the better model",
                    validation, *lowest_validation_, *train_at_lowest_, train));
  }
}

void StallRule::step(double seconds) {
  push(seconds_, seconds, kTimes);
}

std::optional<Finding> StallRule::waiting(std::int64_t step, double waited) {
  if (seconds_.size() < kFewestTimes || printed_ == step) return std::nullopt;
  const double usual = median(seconds_);
  if (waited < std::max(kShortestStall, kStall * usual)) return std::nullopt;
  printed_ = step;
  return Finding{
      step, "stall",
      fmt::format("no step for {}, the median step takes {}; check for a rank that ended or is slow, another program "
                  "on the GPU or the cores, or a disk that does not respond",
                  format_seconds(waited), format_seconds(usual))};
}

}  // namespace hawser::report
