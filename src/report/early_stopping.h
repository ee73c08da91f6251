// `EarlyStopping`: whether the validation loss, or that of one set, has not improved for long enough.
//
//   EarlyStopping stopping(3, "validation");
//   stopping.validated(0, 2.31);        // before training
//   stopping.validated(10, 2.10);
//   ...                                 // three evaluations with 2.10 or more
//   if (stopping.now()) print(stopping.text());
//
// An evaluation improves if its loss is below all earlier ones, that before training among them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/validation_metric.h"
#include "report/metrics.h"

namespace hawser::report {

inline constexpr const char* kEarlyStopping = "early stopping";  // Finding::rule

class EarlyStopping {
 public:
  // `patience`: evaluations without improvement after which a run stops; 0: it does not. `metric`: which loss.
  EarlyStopping(std::int64_t patience, std::string metric) : patience_(patience), metric_(std::move(metric)) {}

  void validated(std::int64_t step, const ValidationLosses& losses);  // step 0: before training
  // The evaluations of a step of an earlier process of this run.
  void replay(const StepMetrics& metrics);

  bool now() const { return patience_ > 0 && without_ >= patience_; }
  // "no lower validation loss in 3 evaluations; the lowest was 2.1034, after step 10"; of a set "no lower validation
  // loss of support in ..."
  std::string text() const;

 private:
  std::int64_t patience_, without_ = 0, step_ = 0;
  std::string metric_;
  std::optional<double> lowest_;
};

}  // namespace hawser::report
