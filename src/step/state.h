// `ModelState`: what a rank keeps from step to step: its shard of every unit's parameters and moments, and the scalars
// that the device reads in each step.
#pragma once

#include <vector>

#include "models/model.h"
#include "tensor/tensor.h"

namespace hawser::step {

// Scalars of a step: float32 on the device, at one address for the entire run; written by begin_step.
struct StepScalars {
  float learning_rate = 0;
  float bias_correction1 = 1;
  float bias_correction2 = 1;
  float inverse_targets = 0;  // 1 / valid targets of the step; 0 if there is none
  static constexpr std::int64_t kFields = 4;
};

// Results of a step: float32 on the device, copied to the host by end_step.
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
  TensorView compute;              // compute dtype: `weights` itself if float32, else a rounded copy
  TensorView exp_avg, exp_avg_sq;  // float32; empty without optimizer
};

struct StateOptions {
  int parts = 1, part = 0;  // shard index and count of flat buffers
  DType compute = DType::f32;
  bool optimizer = true;
  std::int64_t kv_cache_rows = 0;  // slots of each layer's KV cache (nn/kv_cache.h)
};

class ModelState {
 public:
  // Reserves memory, zeroed except the rotary frequencies. On meta there is no memory behind the views.
  ModelState(const models::Model& model, const StateOptions& options, Device& device);

  const StateOptions& options() const { return options_; }
  const UnitState& unit(int i) const { return units_[static_cast<std::size_t>(i)]; }
  const TensorView& rope_frequencies() const { return rope_frequencies_; }
  const TensorView& scalars() const { return scalars_; }        // float32 [StepScalars::kFields]
  const TensorView& result() const { return result_; }          // float32 [StepResult::kFields]
  const TensorView& skip() const { return skip_; }              // int32 [1]
  const TensorView& parameter_norms() const { return norms_; }  // float32 [slices of all parameters]
  std::int64_t bytes() const { return arena_.bytes(); }
  std::int64_t parameter_bytes() const { return parameter_bytes_; }
  std::int64_t optimizer_bytes() const { return optimizer_bytes_; }
  std::int64_t kv_cache_bytes() const { return kv_cache_bytes_; }
  // The layer's KV cache, in the compute dtype; empty if it has none.
  const nn::KvCache& kv_cache(int layer) const { return kv_caches_[static_cast<std::size_t>(layer)]; }
  std::byte* data() const { return arena_.data(); }

  // Rounds a unit's master weights into the compute copy; does nothing if they are the same.
  void refresh_compute(int unit, Stream& stream) const;

 private:
  void fill(const models::Model& model, Device& device);

  StateOptions options_;
  std::int64_t parameter_bytes_ = 0, optimizer_bytes_ = 0, kv_cache_bytes_ = 0;
  Arena arena_;
  std::vector<UnitState> units_;
  std::vector<nn::KvCache> kv_caches_;  // by layer
  TensorView rope_frequencies_, scalars_, result_, skip_, norms_;
};

}  // namespace hawser::step
