// `Prometheus`: serves the numbers of the last step at http://ADDRESS:PORT/metrics, in Prometheus' text format 0.0.4.
//
// Names begin with hawser_ and end in their unit; counters end in _total. All are rank 0's and cover all ranks.
#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <string>

#include "report/http_server.h"
#include "report/run_facts.h"
#include "report/sink.h"

namespace hawser::report {

class Prometheus : public Sink {
 public:
  // Port 0: any free port. UserError if it cannot listen.
  Prometheus(const std::string& address, int port, const RunFacts& facts, std::int64_t resumed_step = 0);

  void step(const StepMetrics& metrics) override;
  void finding(const Finding& finding) override;
  int port() const { return server_.port(); }
  std::string text() const;  // the response to a scrape now

 private:
  std::string name_, version_;
  std::int64_t planned_, done_;
  mutable std::mutex mutex_;  // guards the members below
  StepMetrics last_;
  std::optional<ValidationLosses> validation_;
  double train_seconds_ = 0, tokens_ = 0, updated_ = 0;
  std::int64_t targets_ = 0;
  std::map<std::string, std::int64_t> findings_;
  HttpServer server_;  // last: its thread reads all of the above
};

}  // namespace hawser::report
