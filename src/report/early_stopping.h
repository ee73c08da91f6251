// `EarlyStopping`: whether the validation loss has not improved for long enough.
//
//   EarlyStopping stopping(3);
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

#include "report/metrics.h"

namespace hawser::report {

inline constexpr const char* kEarlyStopping = "early stopping";  // Finding::rule

class EarlyStopping {
 public:
  // `patience`: evaluations without improvement after which a run stops; 0: it does not.
  explicit EarlyStopping(std::int64_t patience) : patience_(patience) {}

  void validated(std::int64_t step, double loss);  // step 0: before training
  // The evaluations of a step of an earlier process of this run.
  void replay(const StepMetrics& metrics);

  bool now() const { return patience_ > 0 && without_ >= patience_; }
  // "no lower validation loss in 3 evaluations; the lowest was 2.1034, after step 10"
  std::string text() const;

 private:
  std::int64_t patience_, without_ = 0, step_ = 0;
  std::optional<double> lowest_;
};

}  // namespace hawser::report
