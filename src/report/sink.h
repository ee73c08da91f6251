// `Sink`: a destination of a run's numbers. `Sinks`: all of them; a sink that fails does not end the run.
//
//   Sinks sinks([&](const std::string& line) { progress.message(line); });
//   sinks.open("TensorBoard", [&] { return std::make_unique<TensorBoard>(...); });
//   sinks.step(metrics);                  // after each step
//   sinks.finish(Ending::done);
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "report/metrics.h"

namespace hawser::report {

enum class Ending {
  done,
  interrupted,
  diverged,  // loss or gradient is not finite, or all steps are done and the run has not recovered from a divergence
  failed
};

// Called from one thread, with increasing steps. An exception affects this call only; later calls are still made.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void step(const StepMetrics& metrics) = 0;
  // A finding between steps, which belongs to no step's metrics.
  virtual void finding(const Finding&) {}
  virtual void sync() {}  // makes what was written durable
  // The last call. May wait a few seconds for background work.
  virtual void finish(Ending) {}

  // For background work: trouble() returns why it fails, once, else ""; lost() returns the number of lost steps.
  virtual std::string trouble() { return ""; }
  virtual std::int64_t lost() const { return 0; }
};

// Never throws on behalf of a sink. The first failure of a sink is logged as one line; further ones are counted and
// reported in finish().
class Sinks {
 public:
  using Log = std::function<void(const std::string&)>;
  explicit Sinks(Log log) : log_(std::move(log)) {}

  void add(const std::string& name, std::unique_ptr<Sink> sink);
  // An exception of `make` is logged as a warning too; the run continues without this sink.
  void open(const std::string& name, const std::function<std::unique_ptr<Sink>()>& make);
  void step(const StepMetrics& metrics);
  void finding(const Finding& finding);
  void sync();
  void finish(Ending ending);  // once; later calls of any member do nothing

 private:
  struct Place {
    std::string name;
    std::unique_ptr<Sink> sink;
    bool warned = false;
    std::int64_t lost = 0;  // steps
  };
  void each(const std::function<void(Sink&)>& call, std::int64_t steps);
  void warn(Place& place, const std::string& why);

  Log log_;
  std::vector<Place> places_;
  std::int64_t steps_ = 0;
};

}  // namespace hawser::report
