// Linears that saturate FP8 again and again: `SaturationHistory` chooses the Linear that falls back to the compute
// dtype for the rest of the run, `Fp8Fallback` is one that has. train/fit_fallback.cpp opens the run again without it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nn/layer.h"

namespace hawser::engine {

// A step that was skipped and replayed, since an x or a dy of this Linear had the largest share of saturated values
// (nn::Quantizer::judge).
struct SaturatedStep {
  std::int64_t step = 0;
  int layer = 0;
  nn::Site site = nn::Site::logits;

  bool same_linear(const SaturatedStep& other) const { return layer == other.layer && site == other.site; }
  bool operator==(const SaturatedStep&) const = default;
};

// The saturated steps among the last kWindow. The device's results that it counts are equal on all ranks, so that all
// ranks decide alike without communication. Checkpoints have steps() and kept().
class SaturationHistory {
 public:
  static constexpr std::int64_t kWindow = 100;

  // Steps do not decrease. A step that one Linear saturates in several replays counts once.
  void add(const SaturatedStep& saturated);
  // The newest saturated step of a Linear that has `limit` of them or more. With limit 0 no Linear falls
  // back.
  std::optional<SaturatedStep> due(std::int64_t limit) const;
  std::int64_t count(const SaturatedStep& linear) const;
  // This Linear cannot fall back: it is not due again in this run, also after it is resumed.
  void keep_in_fp8(const SaturatedStep& linear) { kept_.push_back(linear); }
  const std::vector<SaturatedStep>& kept() const { return kept_; }
  const std::vector<SaturatedStep>& steps() const { return steps_; }
  // Of a checkpoint, without Linears that are no longer in FP8.
  void set_steps(std::vector<SaturatedStep> steps) { steps_ = std::move(steps); }
  void set_kept(std::vector<SaturatedStep> kept) { kept_ = std::move(kept); }

 private:
  std::vector<SaturatedStep> steps_;  // in the order of the steps
  std::vector<SaturatedStep> kept_;
};

struct Fp8Fallback {
  std::int64_t step = 0;             // the first that computes the Linear in the compute dtype
  std::vector<std::string> modules;  // of the Linear: models::modules_at

  bool operator==(const Fp8Fallback&) const = default;
};
// The modules of all.
std::vector<std::string> modules_of(const std::vector<Fp8Fallback>& fallbacks);

}  // namespace hawser::engine
