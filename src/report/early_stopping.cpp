#include "report/early_stopping.h"

#include <fmt/format.h>

#include "base/text.h"

namespace hawser::report {

void EarlyStopping::validated(std::int64_t step, const ValidationLosses& losses) {
  const auto loss = loss_of(losses, metric_);
  if (!loss) return;  // of an earlier process, without this set
  if (lowest_ && *loss >= *lowest_) {
    ++without_;
    return;
  }
  lowest_ = loss;
  step_ = step;
  without_ = 0;
}

void EarlyStopping::replay(const StepMetrics& metrics) {
  if (metrics.initial_validation_loss) validated(0, *metrics.initial_validation_loss);
  if (metrics.validation_loss) validated(metrics.step, *metrics.validation_loss);
}

std::string EarlyStopping::text() const {
  return fmt::format("no lower {} in {}; the lowest was {:.4f}, {}", metric_words(metric_),
                     plural(without_, "evaluation"), lowest_.value_or(0),
                     step_ == 0 ? "before training" : fmt::format("after step {}", step_));
}

}  // namespace hawser::report
