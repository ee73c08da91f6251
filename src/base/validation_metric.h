// The losses of an evaluation, and `train.early_stopping.metric`, which names the one that decides which checkpoint is
// the best and whether a run ends early.
//
//   const ValidationLosses losses(2.4, {{"novels", 2.9}, {"support", 1.9}});
//   loss_of(losses, "validation");      // 2.4, that of all sets together
//   loss_of(losses, "support");         // 1.9
//   metric_words("support");            // "validation loss of support"
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>

namespace hawser {

// The metric of all validation sets together; no set has this name.
inline constexpr const char* kAllSets = "validation";

struct ValidationLosses {
  double all = 0;                      // nats per target, over the targets of all sets
  std::map<std::string, double> sets;  // of each set with a name; empty if the validation data are one set

  ValidationLosses() = default;
  // A number alone is the loss of data without named sets.
  ValidationLosses(double of_all, std::map<std::string, double> of_sets = {}) : all(of_all), sets(std::move(of_sets)) {}

  bool operator==(const ValidationLosses&) const = default;
};

// nullopt if there is no set of that name.
std::optional<double> loss_of(const ValidationLosses& losses, const std::string& metric);

// "validation loss", or "validation loss of support".
std::string metric_words(const std::string& metric);

// "novels 2.9000, support 1.9000"; "" without sets.
std::string set_losses_text(const ValidationLosses& losses);

}  // namespace hawser
