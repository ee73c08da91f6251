// `HtmlFile`: writes report.html. Until the run ends, a background thread rewrites it about once a minute, in at most
// a hundredth of the time; steps do not wait for it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "report/rules.h"
#include "report/run_facts.h"
#include "report/run_history.h"
#include "report/sink.h"

namespace hawser::report {

struct HtmlFileOptions {
  std::string path;
  std::optional<RulesOptions> rules;                                    // nullopt: they are off
  std::function<std::vector<std::pair<std::string, double>>()> phases;  // PhaseClock::totals
  // Whether `path` is still in the run's folder. If not, the page of an unfinished or failed run is not written.
  std::function<bool()> in_place = [] { return true; };
  std::function<void(const std::string&)> log;  // called by finish() when the page is written
  std::chrono::milliseconds every{60000};
};

class HtmlFile : public Sink {
 public:
  // `earlier`: the steps before a resume. Nothing is written before the first step.
  HtmlFile(HtmlFileOptions options, RunFacts facts, RunHistory earlier);
  ~HtmlFile() override;

  void step(const StepMetrics& metrics) override;
  void finding(const Finding& finding) override;
  // RunFacts::memory from now on: the run is planned again.
  void set_memory(std::vector<std::pair<std::string, std::int64_t>> memory);
  // Writes the final page. UserError if it cannot be written. Ending::failed throws nothing, and writes only if there
  // was a step: no page of a run that ended says that it is running.
  void finish(Ending ending) override;

 private:
  using Clock = std::chrono::steady_clock;
  void work();
  void write(const RunFacts& facts, const RunHistory& history, std::optional<Ending> ending) const;

  const HtmlFileOptions options_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  RunFacts facts_;
  RunHistory history_;
  bool stepped_ = false, over_ = false;
  std::thread thread_;
};

}  // namespace hawser::report
