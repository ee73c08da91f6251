// What a rank keeps from step to step: its shard of every unit's parameters and moments, and the few numbers that the
// device reads anew in each step.
#pragma once

#include <vector>

#include "models/model.h"
#include "tensor/tensor.h"

namespace hawser::step {

// float32 on the device, at one address for the whole run; written by begin_step.
struct StepRecord {
  float learning_rate = 0;
  float bias_correction1 = 1;
  float bias_correction2 = 1;
  float loss_scale = 0;  // 1 / valid targets of the step; 0 where there is none
  static constexpr std::int64_t kFields = 4;
};

// What a step leaves behind; float32 on the device, copied to the host by end_step.
struct StepResult {
  float loss_sum = 0;       // over all ranks
  float sum_squares = 0;    // of the gradient
  float gradient_norm = 0;  // before clipping
  float clip = 1;           // coefficient
  static constexpr std::int64_t kFields = 4;
};

// The shard of one unit: elements [begin, begin + count) of its flat buffer.
struct UnitState {
  std::int64_t begin = 0, count = 0;
  TensorView weights;              // float32: the master weights
  TensorView compute;              // the compute dtype: the weights themselves in float32, else a rounded copy
  TensorView exp_avg, exp_avg_sq;  // float32; empty without optimizer
};

struct StateOptions {
  int parts = 1, part = 0;  // the cut of flat buffers over the shard group
  DType compute = DType::f32;
  bool optimizer = true;
  std::int64_t kv_cache_rows = 0;  // rows of keys and values that each attention layer keeps (nn/kv_cache.h)
};

class ModelState {
 public:
  // Reserves memory, all zero but the frequencies of the rotary embedding. On meta nothing is there.
  ModelState(const models::Model& model, const StateOptions& options, Device& device);

  const StateOptions& options() const { return options_; }
  const UnitState& unit(int i) const { return units_[static_cast<std::size_t>(i)]; }
  const TensorView& rope_frequencies() const { return rope_frequencies_; }
  const TensorView& record() const { return record_; }          // float32 [StepRecord::kFields]
  const TensorView& result() const { return result_; }          // float32 [StepResult::kFields]
  const TensorView& skip() const { return skip_; }              // int32 [1]
  const TensorView& parameter_norms() const { return norms_; }  // float32 [segments of all parameters]
  std::int64_t bytes() const { return arena_.bytes(); }
  std::int64_t parameter_bytes() const { return parameter_bytes_; }
  std::int64_t optimizer_bytes() const { return optimizer_bytes_; }
  std::int64_t kept_bytes() const { return kept_bytes_; }
  // The layer's the KV cache, in the compute dtype; empty for one that keeps none.
  const nn::KvCache& kv_cache(int layer) const { return kept_[static_cast<std::size_t>(layer)]; }
  std::byte* data() const { return arena_.data(); }

  // Rounds the master weights of a unit into the compute copy; nothing where they are one.
  void refresh_compute(int unit, Stream& stream) const;

 private:
  void fill(const models::Model& model, Device& device);

  StateOptions options_;
  std::int64_t parameter_bytes_ = 0, optimizer_bytes_ = 0, kept_bytes_ = 0;
  Arena arena_;
  std::vector<UnitState> units_;
  std::vector<nn::KvCache> kept_;  // a layer each
  TensorView rope_frequencies_, record_, result_, skip_, norms_;
};

}  // namespace hawser::step
