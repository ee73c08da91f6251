// Where the numbers of a run go, and what keeps a place that fails from ending the run.
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

enum class Ending { done, interrupted, diverged, failed };  // diverged: loss or gradient is no finite number

// Called from one thread, steps growing. What is thrown counts as this call's loss alone: the next call comes.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void step(const StepMetrics& metrics) = 0;
  // Something found between steps: it belongs to no line of metrics of its own.
  virtual void finding(const Finding&) {}
  virtual void sync() {}  // what was given lies where a crash of the machine leaves it
  // Nothing follows. May wait some seconds for work behind the scenes.
  virtual void finish(Ending) {}

  // Of work that goes on behind the calls: why it fails, once; "" while it does not. Then how many steps were lost.
  virtual std::string trouble() { return ""; }
  virtual std::int64_t lost() const { return 0; }
};

// Never throws for a sink: its first failure is one line to `say`, further ones are counted and told in finish().
class Sinks {
 public:
  using Log = std::function<void(const std::string&)>;
  explicit Sinks(Log log) : log_(std::move(log)) {}

  void add(const std::string& name, std::unique_ptr<Sink> sink);
  // What `make` throws is a warning too: the run goes on without.
  void open(const std::string& name, const std::function<std::unique_ptr<Sink>()>& make);
  void step(const StepMetrics& metrics);
  void finding(const Finding& finding);
  void sync();
  void finish(Ending ending);  // once; further calls of any kind do nothing

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
