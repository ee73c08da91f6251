#include "base/validation_metric.h"

#include <array>
#include <cstdio>

#include "base/cat.h"

namespace hawser {

std::optional<double> loss_of(const ValidationLosses& losses, const std::string& metric) {
  if (metric == kAllSets) return losses.all;
  const auto found = losses.sets.find(metric);
  return found == losses.sets.end() ? std::nullopt : std::optional(found->second);
}

std::string metric_words(const std::string& metric) {
  return metric == kAllSets ? "validation loss" : cat("validation loss of ", metric);
}

std::string set_losses_text(const ValidationLosses& losses) {
  std::string out;
  for (const auto& [name, loss] : losses.sets) {
    std::array<char, 32> number{};
    std::snprintf(number.data(), number.size(), "%.4f", loss);
    out += cat(out.empty() ? "" : ", ", name, " ", number.data());
  }
  return out;
}

}  // namespace hawser
