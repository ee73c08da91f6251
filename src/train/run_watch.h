// All that watches a run from rank 0: metrics.jsonl, the places that the recipe turns on, the rules, report.html.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/recipe.h"
#include "report/phase_clock.h"
#include "report/rules.h"
#include "report/run_facts.h"
#include "report/sink.h"

namespace hawser::train {

// The kinds that Fit's phases count as.
inline constexpr const char* kTraining = "training";

class RunWatch {
 public:
  using Log = std::function<void(const std::string&)>;

  // `phases` outlives it. UserError where metrics.jsonl cannot be written; any other place that fails is a warning.
  // `say` may be called from another thread.
  RunWatch(const Recipe& recipe, report::RunFacts facts, std::int64_t resumed_step, const report::PhaseClock& phases,
           Log log);
  ~RunWatch();
  RunWatch(const RunWatch&) = delete;
  RunWatch& operator=(const RunWatch&) = delete;

  void step(report::StepMetrics metrics);  // with what the rules say about it
  void sync();                             // before a checkpoint: its steps are in metrics.jsonl, whatever happens
  // Nothing follows but the destructor; report.html is written, but where the run failed. Further calls do nothing.
  void finish(report::Ending ending);

 private:
  void watch_for_stalls();
  void write_html(report::Ending ending);
  void print_finding(const report::Finding& finding);

  const Recipe& recipe_;
  report::RunFacts facts_;
  const report::PhaseClock& phases_;
  Log log_;
  std::mutex mutex_;  // guards what the thread shares: sinks, the stall rule, the step
  std::condition_variable changed_;
  report::Sinks sinks_;
  std::optional<report::Rules> rules_;
  report::StallRule stall_;
  std::int64_t step_ = 0;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace hawser::train
