// Choice of policies for memory.activation_checkpointing: auto. Estimates of each policy in all blocks give the
// candidates (policy_candidates.h); the candidates give the fastest mix within a memory budget; a complete plan of that
// mix measures the estimate's error and corrects the budget. All limits are counts, so every rank and every run finds
// the same.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>

#include "base/clock.h"
#include "base/error.h"
#include "plan/forecast.h"
#include "plan/policy_candidates.h"

namespace hawser::plan {

namespace {

constexpr int kMaxMixes = 8;  // for each candidate that recomputes least in a mix
// Maximum number of neighbours to plan, and maximum number of their blocks times micro-batches, for large models.
constexpr int kMaxNeighbours = 64, kNeighbourBlocks = 768;

Recipe with_policies(const Recipe& recipe, std::vector<Checkpointing> policies) {
  Recipe out = recipe;
  out.memory.per_layer = std::move(policies);
  return out;
}

}  // namespace

class Forecaster::Choice {
 public:
  Choice(const Forecaster& on, const Recipe& recipe)
      : on_(on),
        blocks_(static_cast<int>(on.model_.description().blocks.size())),
        recipe_(recipe),
        short_(on.shortened(recipe, on.searched_micro_batches())) {}

  Forecast run() {
    std::vector<PolicyCandidate> candidates = list_policy_candidates(on_.layout_of(short_), on_.model_);
    for (PolicyCandidate& candidate : candidates) {
      const Forecast f = plan(short_, uniform(candidate.policy), program::Placing::estimate);
      candidate.needed_bytes = static_cast<double>(f.needed());
      candidate.seconds = f.seconds;
      tried_[uniform(candidate.policy)] = {candidate.needed_bytes, candidate.seconds, false};
    }
    const auto min = std::min_element(
        candidates.begin(), candidates.end(),
        [](const PolicyCandidate& a, const PolicyCandidate& b) { return a.needed_bytes < b.needed_bytes; });
    if (min->needed_bytes > static_cast<double>(on_.capacity_) &&
        on_.layout_of(recipe_).micro_batches > on_.searched_micro_batches()) {
      return on_.extrapolated(with_policies(recipe_, uniform(min->policy)));
    }
    const PolicyCandidates policies(candidates, blocks_);
    // The step with all micro-batches may need a little more than the short one; then search again with a lower limit.
    double limit = (1 - kAutoMargin) * static_cast<double>(on_.capacity_);
    for (int round = 0; round < 3; ++round) {
      const std::optional<Planned> found = search(policies, limit);
      if (!found) break;
      const std::vector<Checkpointing> list = policies.list(found->mix);
      Forecast full = plan(recipe_, list, program::Placing::offsets);
      if (static_cast<double>(full.needed()) <= (1 - kAutoMargin) * static_cast<double>(on_.capacity_)) return full;
      limit -= static_cast<double>(full.needed()) - found->needed;
    }
    // No mix leaves the margin free: the policy with the minimum memory.
    return plan(recipe_, uniform(min->policy), program::Placing::offsets);
  }

 private:
  struct Planned {
    Mix mix;
    double needed = 0, seconds = 0;
  };

  std::vector<Checkpointing> uniform(Checkpointing policy) const {
    return std::vector<Checkpointing>(static_cast<std::size_t>(blocks_), policy);
  }

  Forecast plan(const Recipe& recipe, std::vector<Checkpointing> policies, program::Placing placing,
                std::int64_t max_needed = std::numeric_limits<std::int64_t>::max()) const {
    return on_.forecast(with_policies(recipe, std::move(policies)), on_.model_, placing, max_needed);
  }

  // The short step with a mix. Buffers are placed only if the estimate fits.
  Planned planned(const PolicyCandidates& policies, const Mix& mix, double limit) {
    const auto found = tried_.try_emplace(policies.list(mix));
    Tried& tried = found.first->second;
    if (found.second || (!tried.placed && tried.needed <= limit)) {
      const Forecast f = plan(short_, found.first->first, program::Placing::offsets, static_cast<std::int64_t>(limit));
      tried = {static_cast<double>(f.needed()), f.seconds, f.placed};
    }
    return {mix, tried.needed, tried.seconds};
  }

  std::optional<Planned> search(const PolicyCandidates& policies, double limit) {
    std::optional<Planned> best;
    const auto judge = [&](const Mix& mix) {
      const Planned p = planned(policies, mix, limit);
      if (p.needed <= limit && (!best || p.seconds < best->seconds)) best = p;
      return p;
    };
    // For each candidate: the estimated seconds of the fastest mix in which it recomputes least. Searched in ascending
    // order. The estimate's error is similar for mixes with the same such candidate.
    std::vector<std::pair<double, std::size_t>> fastest_first;
    for (std::size_t least_recompute = 0; least_recompute < policies.candidates().size(); ++least_recompute) {
      if (const auto mix = policies.fastest(limit, least_recompute))
        fastest_first.emplace_back(mix->seconds, least_recompute);
    }
    std::sort(fastest_first.begin(), fastest_first.end());
    for (const auto& [seconds, least_recompute] : fastest_first) {
      if (best && seconds >= best->seconds) continue;
      // The budget is between `low`, which yields no mix or one that fits, and `high`, which yields one that is too
      // large.
      double budget = limit, low = 0, high = std::numeric_limits<double>::infinity();
      for (int i = 0; i < kMaxMixes && high - low > kFinest * limit; ++i) {
        const std::optional<Mix> mix = policies.fastest(budget, least_recompute);
        double next = 0;
        if (mix) {
          const Planned p = judge(*mix);
          (p.needed <= limit ? low : high) = budget;
          next = limit - (p.needed - mix->needed_bytes);
        } else {
          low = budget;
        }
        if (next <= low || next >= high) next = (low + high) / 2;
        if (std::isinf(next)) break;
        budget = next;
      }
    }
    // The estimate may be wrong about one policy in all blocks: try those that are faster and fit.
    for (std::size_t r = 0; r < policies.candidates().size(); ++r) {
      const PolicyCandidate& candidate = policies.candidates()[r];
      if (candidate.needed_bytes <= limit && (!best || candidate.seconds < best->seconds)) judge(policies.uniform(r));
    }
    if (best) improve(policies, limit, *best);
    return best;
  }

  // The estimate's error differs between mixes: a faster neighbour may fit although the estimate is above the limit.
  void improve(const PolicyCandidates& policies, double limit, Planned& best) {
    const int max = std::min(kMaxNeighbours, kNeighbourBlocks / (blocks_ * on_.layout_of(short_).micro_batches));
    for (int tries = 0; tries < max;) {
      bool better = false;
      for (const Mix& mix : policies.faster_neighbours(best.mix)) {
        if (tries++ == max) return;
        const Planned p = planned(policies, mix, limit);
        if (p.needed > limit || p.seconds >= best.seconds) continue;
        best = p;
        better = true;
        break;
      }
      if (!better) return;
    }
  }

  static constexpr double kFinest = 5e-4;

  struct Tried {
    double needed = 0, seconds = 0;
    bool placed = false;
  };

  const Forecaster& on_;
  int blocks_;
  const Recipe& recipe_;
  Recipe short_;
  std::map<std::vector<Checkpointing>, Tried> tried_;
};

Forecast Forecaster::choose(const Recipe& recipe) const {
  const auto start = std::chrono::steady_clock::now();
  Forecast out = Choice(*this, recipe).run();
  out.chosen = true;
  out.planning_seconds = seconds_since(start);
  return out;
}

}  // namespace hawser::plan
