#include "report/divergence.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "base/cat.h"

namespace hawser::report {
namespace {

constexpr std::size_t kLeastWindow = 8, kLargestWindow = 20;
constexpr std::int64_t kEnoughTargets = 200;
constexpr double kWorseThanUniform = 1.2;
constexpr double kFall = 0.95;  // of few steps: of the later ones, relative to the earlier ones
constexpr double kTrainingRise = 0.25, kTrainingSpreads = 6;         // of training losses
constexpr double kValidationRise = 0.1, kLeastValidationRise = 0.1;  // a share, and nats

double mean(std::span<const double> losses) {
  return std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
}

double spread(std::span<const double> losses) {
  const double middle = mean(losses);
  double squares = 0;
  for (const double loss : losses) squares += (loss - middle) * (loss - middle);
  return std::sqrt(squares / static_cast<double>(losses.size() - 1));
}

}  // namespace

Divergence::Divergence(const DivergenceOptions& options)
    : options_(options),
      window_(std::clamp(static_cast<std::size_t>(options.steps / 4), kLeastWindow, kLargestWindow)) {}

std::optional<std::string> Divergence::begin(const std::string& what) {
  diverged_ = true;
  by_validation_ = false;
  return cat(what, "; try a lower optimizer.learning_rate or a longer optimizer.warmup_steps");
}

double Divergence::latest_mean() const {
  double sum = 0;
  for (const Step& step : latest_) sum += step.loss;
  return sum / static_cast<double>(latest_.size());
}

bool Divergence::falls() const {
  if (latest_.empty()) return false;
  const auto first = static_cast<std::int64_t>(start_.size()), last = static_cast<std::int64_t>(latest_.size());
  if (counted_ >= first + last) return latest_mean() < mean(start_);
  if (counted_ > first || first < 2) return latest_mean() < kFall * mean(start_);
  const std::span<const double> all(start_);
  const std::size_t half = all.size() / 2;
  return mean(all.subspan(all.size() - half)) < kFall * mean(all.first(half));
}

std::optional<std::string> Divergence::worse_than_uniform() const {
  double sum = 0;
  std::int64_t targets = 0;
  std::size_t steps = 0;
  while (targets < kEnoughTargets && steps < latest_.size()) {
    const Step& step = latest_[latest_.size() - ++steps];
    sum += step.loss * static_cast<double>(step.targets);
    targets += step.targets;
  }
  const auto before = std::min(static_cast<std::int64_t>(start_.size()), counted_ - static_cast<std::int64_t>(steps));
  if (targets < kEnoughTargets || before < 1) return std::nullopt;
  const double loss = sum / static_cast<double>(targets);
  const double start = mean({start_.data(), static_cast<std::size_t>(before)});
  if (loss <= kWorseThanUniform * std::max(start, options_.uniform_loss)) return std::nullopt;
  return fmt::format(
      "the loss is {:.4g}; at the start it was {:.4f}, and a model that gives every token the same "
      "probability has {:.4f}",
      loss, start, options_.uniform_loss);
}

std::optional<std::string> Divergence::worse_than_at_start() const {
  const auto first = static_cast<double>(start_.size()), last = static_cast<double>(latest_.size());
  const bool full = start_.size() >= window_ && std::min(start_targets_, latest_targets_) >= kEnoughTargets;
  if (!full || static_cast<double>(counted_) < first + last) return std::nullopt;
  const double loss = latest_mean(), start = mean(start_);
  const double noise = kTrainingSpreads * spread(start_) * std::sqrt(1 / first + 1 / last);
  if (loss <= start + std::max(kTrainingRise * start, noise)) return std::nullopt;
  return fmt::format("the mean loss of the last {} steps is {:.4f}, and of the first {} it was {:.4f}", last, loss,
                     first, start);
}

std::optional<std::string> Divergence::step(double loss, std::int64_t targets) {
  if (targets <= 0) return std::nullopt;
  ++counted_;
  latest_.push_back({loss, targets});
  latest_targets_ += targets;
  while (latest_.size() > window_ && latest_targets_ - latest_.front().targets >= kEnoughTargets) {
    latest_targets_ -= latest_.front().targets;
    latest_.pop_front();
  }
  if (diverged_) {
    const bool validates_well = !first_validation_ || !last_validation_ || *last_validation_ < *first_validation_;
    diverged_ = !(validates_well || by_validation_) || !falls();
    return std::nullopt;
  }
  if (start_.size() < window_ || start_targets_ < kEnoughTargets) {
    start_.push_back(loss);
    start_targets_ += targets;
  }
  if (const auto what = worse_than_uniform()) {
    while (start_.size() > 1 && start_.back() > kWorseThanUniform * start_.front()) start_.pop_back();
    return begin(*what);
  }
  if (const auto what = worse_than_at_start()) return begin(*what);
  return std::nullopt;
}

std::optional<std::string> Divergence::validated(std::int64_t step, double loss) {
  if (step == 0) first_validation_ = loss;
  if (step == 0 || !first_validation_) return std::nullopt;
  last_validation_ = loss;
  const bool worse = loss > *first_validation_ + std::max(kValidationRise * *first_validation_, kLeastValidationRise);
  if (diverged_ || falls() || !worse) return std::nullopt;
  std::string text =
      *begin(fmt::format("the validation loss rose from {:.4f} before training to {:.4f}", *first_validation_, loss));
  by_validation_ = true;
  return text;
}

void Divergence::replay(const StepMetrics& metrics) {
  if (metrics.initial_validation_loss) validated(0, metrics.initial_validation_loss->all);
  if (metrics.has_norm() && std::isfinite(metrics.loss)) step(metrics.loss, metrics.targets);
  if (metrics.validation_loss) validated(metrics.step, metrics.validation_loss->all);
}

}  // namespace hawser::report
