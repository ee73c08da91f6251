// metrics.jsonl: one JSON object a step, one line each.
#pragma once

#include <chrono>
#include <functional>

#include "report/append_file.h"
#include "report/sink.h"

namespace hawser::report {

// Appends. The disk has a line when the next one comes a second later or more, and when sync() or the destructor
// returns. (A step of a second or more is thus on the disk before the next one ends.) A finding between steps is
// written with the next step's line.
class MetricsFile : public Sink {
 public:
  // Keeps what an earlier run wrote about steps up to `resumed_step`, and cuts off everything from the first later or
  // broken line on, in one truncation. 0: a new run, nothing is kept. The folder is made when missing. UserError where
  // the file cannot be written.
  explicit MetricsFile(const std::string& path, std::int64_t resumed_step = 0);

  // Steps must grow. UserError when the disk is full; nothing of the line stays then, and the next may be written.
  void step(const StepMetrics& metrics) override;
  void finding(const Finding& finding) override { waiting_.push_back(finding); }
  void sync() override;
  void finish(Ending) override { sync(); }

 private:
  struct Kept {
    std::int64_t bytes = 0, last_step = 0;
  };
  MetricsFile(const std::string& path, Kept kept);
  static Kept lines_to_keep(const std::string& path, std::int64_t last);

  AppendFile file_;
  std::vector<Finding> waiting_;
  std::int64_t last_step_ = 0;
  std::chrono::steady_clock::time_point synced_;
};

// Every whole line of the file in turn; nothing where it cannot be read.
void read_metrics(const std::string& path, const std::function<void(const StepMetrics&)>& use);

}  // namespace hawser::report
