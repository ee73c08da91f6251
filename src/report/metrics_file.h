// `MetricsFile`: writes metrics.jsonl, one JSON object per line and step.
#pragma once

#include <chrono>
#include <functional>

#include "io/record_file.h"
#include "report/sink.h"

namespace hawser::report {

// Appends. step() syncs if the last sync was a second or more ago; sync() and the destructor always do. A finding
// between steps is written with the next step's line.
class MetricsFile : public Sink {
 public:
  // Keeps the lines of an earlier run up to `resumed_step`, and truncates the file once at the first later line. 0: a
  // new run, nothing is kept. If lines of kept steps follow, or lines that are not one step each (the file was edited),
  // all of it is copied first, see note(); such lines among those that are kept are removed. Creates the folder if
  // missing. UserError if the file cannot be written.
  explicit MetricsFile(const std::string& path, std::int64_t resumed_step = 0);

  // Steps must increase. UserError when the disk is full; nothing of the line stays then, and the next may be written.
  void step(const StepMetrics& metrics) override;
  void finding(const Finding& finding) override { waiting_.push_back(finding); }
  void sync() override;
  void finish(Ending) override { sync(); }
  // What the user should know about the earlier file; "" if there is nothing.
  const std::string& note() const { return note_; }
  bool in_place() const { return file_.in_place(); }
  void copy_to(const std::string& path) const { file_.copy_to(path); }

 private:
  struct Kept {
    std::int64_t bytes = 0, last_step = 0;
    bool needs_newline = false;  // the last line is complete except for it
    std::string note;
  };
  MetricsFile(const std::string& path, Kept kept);
  static Kept lines_to_keep(const std::string& path, std::int64_t last);

  io::RecordFile file_;
  std::string note_;
  std::vector<Finding> waiting_;
  std::int64_t last_step_ = 0;
  std::chrono::steady_clock::time_point synced_;
};

// Calls `use` for every complete line of the file, in order, and once for a step; for none if there is no file.
void read_metrics(const std::string& path, const std::function<void(const StepMetrics&)>& use);

}  // namespace hawser::report
