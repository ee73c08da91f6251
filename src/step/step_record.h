// `StepRecord`, `StepResult` and `OptimizerProgress`: the scalars that a step reads and writes. On the device each is
// one struct at one address for all steps; ops get views of its fields by name:
//
//   state.record().field(&StepRecord::inverse_targets)   // float32 [1]
//
// A new scalar is a member: float, std::int32_t, or a struct of floats that an op reads as a whole.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "nn/layer.h"
#include "optim/optimizer.h"
#include "tensor/tensor.h"

namespace hawser::step {

// The learning rate of each nn::FlatSpec::group.
struct LearningRates {
  std::array<float, optim::kGroups> of{};

  LearningRates(float all = 0) { of.fill(all); }
};

// Copied to the device at the begin of a step.
struct StepRecord {
  LearningRates learning_rate;
  std::int32_t step = 0;      // number of the step in the run: keys its random numbers
  float inverse_targets = 0;  // 1 / number of valid targets of the step, over all ranks; 0 if there is none
};

// What the device counts itself, since the host enqueues steps before it knows whether an earlier one was skipped. Kept
// from step to step and in checkpoints.
struct OptimizerProgress {
  std::int32_t step = 0;        // updates so far; a skipped step is none. Bias corrections follow it
  std::int32_t good_steps = 0;  // updates since the loss scale changed or a gradient overflowed
  float loss_scale = 1;
  std::array<float, optim::kKeptScalars> kept{};  // optim::Prepare::kept
  // Not negative: the step with this number was skipped and is to run again. Until it has, steps with other numbers,
  // which the host may have enqueued meanwhile, change nothing. nn::Quantizer::judge() sets and clears it; for a step
  // that a layer refuses, ops::refuse_step sets it and engine::Session::enqueue_refused() clears it.
  std::int32_t replay_step = -1;
  std::int32_t replays = 0;  // how often that step was skipped so far
};

// Why a step changes nothing; none: it counts.
enum class Skip : std::int32_t {
  none,
  overflow,   // the gradient's norm is not finite (ops::clip_coefficient writes this 1)
  no_target,  // StepInput::skip
  saturated,  // nn::Quantizer::judge(): values were beyond the range of their scale
  replay,     // another step runs again first (OptimizerProgress::replay_step)
  refused,    // a layer of a rank cannot compute it: StepResult::refusal. Its other results are of no use. With
              // ExecutorSetup::runs_refused_again it runs again in a larger plan
};
const char* to_string(Skip skip);

// A sum of 48 bits, as ops/loss/linear_cross_entropy.h keeps it.
struct PreciseSum {
  float high = 0;
  float low = 0;

  double value() const { return std::isfinite(high) ? static_cast<double>(high) + static_cast<double>(low) : high; }
};

// Copied to the host at the end of a step.
struct StepResult {
  PreciseSum loss_sum;       // sum over valid targets: this rank's on the device, all ranks' on the host
  float sum_squares = 0;     // of the global gradient; until gradient_norm all-reduces it, of this rank's shards
  float gradient_norm = 0;   // global L2 norm before clipping
  float clip = 1;            // coefficient that scales the gradient
  float auxiliary_loss = 0;  // mean over micro-batches of the loss that layers add (nn/auxiliary_loss.h); of all ranks
  float refusal = 0;         // nn::Refusal; of this rank until gradient_norm, or end_step, takes the maximum of all
  // The largest share of elements of one of StateOptions::scaled_sites that were beyond the range of its scale
  // (nn::Quantizer::judge), and its index. Without sites 0.
  float saturation = 0;
  std::int32_t saturated_site = 0;
  // Skip; ops take any value but 0 as "change nothing". The last member: the host's value arrives before the others are
  // zeroed.
  std::int32_t skip = 0;

  Skip skipped() const { return static_cast<Skip>(skip); }
  nn::Refusal refused() const { return static_cast<nn::Refusal>(refusal); }
};

// A record on the device.
template <class Record>
class RecordView {
  static_assert(std::is_trivially_copyable_v<Record> && sizeof(Record) % sizeof(float) == 0);

 public:
  static constexpr std::int64_t kFloats = sizeof(Record) / sizeof(float);

  RecordView() = default;
  explicit RecordView(const TensorView& all) : all_(all) {}  // float32 [kFloats]

  const TensorView& all() const { return all_; }

  template <class Field>
  TensorView field(Field Record::*member) const {
    using Element = std::conditional_t<std::is_same_v<Field, std::int32_t>, std::int32_t, float>;
    constexpr std::int64_t kElements = sizeof(Field) / size_of(dtype_of<Element>());
    static const Record any{};
    const auto offset = reinterpret_cast<const std::byte*>(&(any.*member)) - reinterpret_cast<const std::byte*>(&any);
    return {all_.raw() + offset, dtype_of<Element>(), {kElements}, all_.device()};
  }

 private:
  TensorView all_;
};

}  // namespace hawser::step
