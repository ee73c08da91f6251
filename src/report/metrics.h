// What a step tells: the numbers that every place of report/ gets.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace hawser::report {

// How far the data has been read after a step.
struct DataPosition {
  std::int64_t sequences = 0;  // drawn so far, over all ranks
  double epoch = 0;            // the same as passes over the training data
};

// What a rule that watches training has to say (report/rules.h).
struct Finding {
  std::int64_t step = 0;
  std::string rule;  // "exploding gradients"
  std::string text;  // what was seen, and what to try
};

struct StepMetrics {
  std::int64_t step = 0;  // from 1
  double loss = 0;        // nats a target, before the update
  double grad_norm = 0;   // before clipping
  double lr = 0;
  double tokens_per_second = 0;       // of the whole run
  double model_flops_per_second = 0;  // of the whole run; recompute does not count
  double step_seconds = 0;
  std::int64_t targets = 0;  // tokens predicted, over all ranks; 0: the step was skipped, its loss says nothing
  std::int64_t peak_arena_bytes = 0;  // the largest over ranks
  // Attention work of the step's micro-batches over the ranks that share them (rank 0's context group): most over mean.
  double attention_imbalance = 1;
  DataPosition data_position;
  std::string checkpointing;                      // memory.activation_checkpointing; where a run begins or goes on
  std::optional<double> model_flops_utilization;  // of what the devices can do at most, where that is known
  std::optional<double> validation_loss;          // where an evaluation followed the step
  std::vector<Finding> findings;                  // about this step
};

// What can be drawn as a curve, each with its name: "loss/train", "speed/tokens_per_second". Without loss and gradient
// where the step was skipped.
std::vector<std::pair<const char*, double>> scalars(const StepMetrics& metrics);

// One line without its end: {"step":1,"loss":3.5,...,"data_position":{"sequences":8,"epoch":0.01}}. Numbers that are
// not finite become null, since JSON has none; null in a line is read as not a number.
std::string to_json(const StepMetrics& metrics);
std::optional<StepMetrics> from_json(const std::string& line);  // none where it is no such line

}  // namespace hawser::report
