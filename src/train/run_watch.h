// `RunWatch`: rank 0's monitoring of a run: metrics.jsonl, the sinks that the run enables, training rules,
// report.html.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "plan/run_plan.h"
#include "report/divergence.h"
#include "report/early_stopping.h"
#include "report/html_file.h"
#include "report/metrics_file.h"
#include "report/phase_clock.h"
#include "report/rules.h"
#include "report/run_facts.h"
#include "report/sink.h"

namespace hawser::train {

// The kind of phase (FitRun::phase) during which the stall rule is active.
inline constexpr const char* kTraining = "training";

// nullopt: the recipe switches rules off.
std::optional<report::RulesOptions> rules_options(const plan::RunPlan& plan);
report::DivergenceOptions divergence_options(const plan::RunPlan& plan, std::int64_t vocabulary);

// Where a run continues.
struct Resumed {
  std::int64_t step = 0;
  bool same_validation = false;  // false: earlier validation losses are those of other data
};

class RunWatch {
 public:
  using Log = std::function<void(const std::string&)>;

  // `phases` outlives it. UserError if metrics.jsonl cannot be written; a failure of any other sink is a warning. `log`
  // may be called from another thread.
  RunWatch(const plan::RunPlan& plan, const report::RunFacts& facts, const Resumed& resumed, std::int64_t vocabulary,
           const report::PhaseClock& phases, Log log);
  ~RunWatch();
  RunWatch(const RunWatch&) = delete;
  RunWatch& operator=(const RunWatch&) = delete;

  // Records the metrics and, after the findings in them, those of the rules.
  void step(report::StepMetrics metrics);
  // The losses of an evaluation after this step, before the step's metrics are recorded; step 0: before training.
  void validated(std::int64_t step, const ValidationLosses& losses);
  // Training has diverged and not recovered (report/divergence.h), whether or not the recipe asks for rules.
  bool diverged() const { return divergence_.now(); }
  // The loss that train.early_stopping.metric names has not improved for train.early_stopping.patience evaluations:
  // what to print; else nullopt.
  std::optional<std::string> stops_early() const {
    return early_stopping_.now() ? std::optional(early_stopping_.text()) : std::nullopt;
  }
  // RunFacts::memory of a run that is planned again, for its report.
  void set_memory(std::vector<std::pair<std::string, std::int64_t>> memory);
  // metrics.jsonl is no longer the file that this run writes: it was moved, removed or replaced.
  bool metrics_displaced() const { return !metrics_->in_place(); }
  void copy_metrics(const std::string& path);  // all lines so far; UserError
  void sync();                                 // flushes metrics.jsonl; called before a checkpoint is saved
  // Ends the monitoring. Further calls do nothing.
  void finish(report::Ending ending);

 private:
  void watch_for_stalls();
  void print_finding(const report::Finding& finding);

  const plan::RunPlan& plan_;
  const report::PhaseClock& phases_;
  Log log_;
  std::mutex mutex_;  // guards what the thread shares: sinks_, stall_, step_
  std::condition_variable changed_;
  report::Sinks sinks_;
  report::MetricsFile* metrics_ = nullptr;  // one of the sinks
  report::HtmlFile* html_ = nullptr;        // one of the sinks; null: the run has none
  std::string wandb_path_;
  report::Divergence divergence_;
  report::EarlyStopping early_stopping_;
  std::optional<std::string> validation_finding_;  // of the evaluation after the next step that is recorded
  std::optional<report::Rules> rules_;
  report::StallRule stall_;
  std::int64_t step_ = 0;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace hawser::train
