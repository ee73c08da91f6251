// What a step tells, and metrics.jsonl: one JSON object a step, one line each.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace hawser::report {

// How far the data has been read after a step.
struct DataPosition {
  std::int64_t sequences = 0;  // drawn so far, over all ranks
  double epoch = 0;            // the same as passes over the training data
};

struct StepMetrics {
  std::int64_t step = 0;     // from 1
  double loss = 0;           // nats a target, before the update
  double gradient_norm = 0;  // before clipping
  double learning_rate = 0;
  double tokens_per_second = 0;       // of the whole run
  double model_flops_per_second = 0;  // of the whole run; recompute does not count
  double step_seconds = 0;
  std::int64_t peak_arena_bytes = 0;  // the largest over ranks
  // Attention work of the step's micro-batches over the ranks that share them (rank 0's context group): most over mean.
  double attention_imbalance = 1;
  DataPosition data_position;
  std::string checkpointing;              // memory.activation_checkpointing; where a run begins or goes on
  std::optional<double> validation_loss;  // where an evaluation followed the step
};

// One line without its end: {"step":1,"loss":3.5,...,"data_position":{"sequences":8,"epoch":0.01}}. Numbers that are
// not finite become null, since JSON has none.
std::string to_json(const StepMetrics& metrics);

// Appends to metrics.jsonl. The system gets each line in one call, so that a killed process leaves whole lines; the
// disk has it when the next line comes a second later or more, and when sync() or the destructor returns. (A step of a
// second or more is thus on the disk before the next one ends.)
class MetricsWriter {
 public:
  // Keeps what an earlier run wrote about steps up to `resumed_step`, and cuts off everything from the first later or
  // broken line on, in one truncation. 0: a new run, nothing is kept. The folder is made when missing. UserError where
  // the file cannot be written.
  explicit MetricsWriter(const std::string& path, std::int64_t resumed_step = 0);
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  // Steps must grow. UserError when the disk is full; nothing of the line stays then.
  void write(const StepMetrics& metrics);
  void sync();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int file_ = -1;
  std::int64_t last_step_ = 0;
  std::int64_t bytes_ = 0;  // of whole lines
  bool dirty_ = false;
  std::chrono::steady_clock::time_point synced_;
};

}  // namespace hawser::report
