// `StepMetrics`: the numbers of one step that every sink receives.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/validation_metric.h"

namespace hawser::report {

// Position in the training data after a step.
struct DataPosition {
  std::int64_t sequences = 0;  // read so far, by all ranks
  double epoch = 0;            // the same, in passes over the training data
};

// A finding of a rule that watches training (report/rules.h).
struct Finding {
  std::int64_t step = 0;
  std::string rule;  // "exploding gradients"
  std::string text;  // what was found, and what to try
};

constexpr std::size_t kMaxExpertCounts = 1024;  // in a line of metrics

// What FP8 changes of a step (docs/fp8.md), relative to the same step with inputs and gradients in the compute dtype.
struct Fp8Error {
  double loss = 0;        // |difference| / reference
  double gradient = 0;    // norm of the difference of all gradients / norm of the reference
  double worst = 0;       // the largest of these of one parameter
  std::string parameter;  // which one it is
};

struct StepMetrics {
  std::int64_t step = 0;  // from 1
  double time = 0;        // Unix time in seconds at which the step ended; 0: unknown, as in lines of earlier versions
  double loss = 0;        // nats per target, before the update
  double grad_norm = 0;   // before clipping; undefined if `overflow`
  double lr = 0;
  double tokens_per_second = 0;       // all ranks
  double model_flops_per_second = 0;  // all ranks; recompute not counted
  double step_seconds = 0;
  std::int64_t targets = 0;           // tokens predicted, all ranks; 0: the step was skipped and its loss is undefined
  std::int64_t peak_arena_bytes = 0;  // maximum over ranks
  // Attention work of the step's micro-batches over the ranks that share them (rank 0's context group): max / mean.
  double attention_imbalance = 1;
  // Models with experts: the losses that routers add, which `loss` does not include; the tokens of each expert of each
  // layer, empty if there are more than kMaxExpertCounts; and the mean over layers of the maximum over experts of
  // these, divided by the mean over experts.
  std::optional<double> router_loss, expert_imbalance;
  std::vector<std::vector<double>> expert_tokens;
  DataPosition data_position;
  std::optional<double> loss_scale;  // of the step, if it is dynamic (ops/loss_scale/loss_scale.h)
  bool overflow = false;  // the scaled gradient overflowed: the step was skipped, and the next has a lower loss scale
  std::int64_t replays = 0;  // the step was skipped so often before, since values saturated FP8 (docs/fp8.md)
  std::vector<std::string> fp8_fallback;  // modules of Linears that are not in FP8 from this step on (docs/fp8.md)
  std::optional<Fp8Error> fp8_error;      // of steps that are verified
  std::string checkpointing;              // memory.activation_checkpointing; set on the first step of a run or resume
  std::optional<double> model_flops_utilization;  // over the devices' peak FLOPS, where known
  // Of the GPUs that are measured (train/power_watch.h), where NVML reports them: mean watts and SM clock of a GPU, and
  // joules of all ranks per token.
  std::optional<double> gpu_watts, joules_per_token, sm_clock_mhz;
  std::optional<ValidationLosses> validation_loss;          // set if an evaluation followed the step
  std::optional<ValidationLosses> initial_validation_loss;  // before any training; set on step 1 if it was evaluated
  std::vector<Finding> findings;                            // about this step

  bool has_norm() const { return targets != 0 && !overflow; }
};

// A point of a curve: "loss/train", "loss/validation_support" (of a validation set), "speed/tokens_per_second".
struct Scalar {
  std::string name;
  double value = 0;
  std::int64_t step = 0;  // 0: before any training
};
// The points of a step's metrics, in order of steps. A step without targets has no loss and no gradient norm, and one
// with an overflow no gradient norm.
std::vector<Scalar> scalars(const StepMetrics& metrics);

// One line without its newline: {"step":1,"time":1767225600.5,"loss":3.5,...,"data_position":{"sequences":8,...}}.
// Numbers that are not finite are written as null, since JSON has none, and so are those that the step does not have;
// null is read back as NaN.
std::string to_json(const StepMetrics& metrics);
std::optional<StepMetrics> from_json(const std::string& line);  // nullopt if it is not such a line

}  // namespace hawser::report
