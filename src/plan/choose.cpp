// Choice of the blocks' policies for memory.activation_checkpointing: auto. Estimates of each policy in all blocks give
// the candidates (policy_candidates.h); the candidates give the fastest mix within a memory budget; a complete plan of
// that mix measures the estimate's error and corrects the budget. All limits are counts, so every rank and every run
// finds the same.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>

#include "base/clock.h"
#include "base/error.h"
#include "plan/forecast.h"
#include "plan/pipeline_form.h"
#include "plan/policy_candidates.h"

namespace hawser::plan {

namespace {

constexpr int kMaxMixes = 8;  // for each candidate that recomputes least in a mix
// Maximum number of neighbours to plan, and maximum number of their blocks times micro-batches, for large models.
constexpr int kMaxNeighbours = 64, kNeighbourBlocks = 768;
// Of large plans fewer mixes are planned: the search ends with one that leaves at most kUnused of the limit free, and
// looks for others only if they are estimated to be faster by kFaster.
constexpr int kMixesOfLarge = 3, kAllMixesOfLarge = 5;
constexpr double kUnused = 0.03, kFaster = 0.01;

}  // namespace

class Forecaster::Choice {
 public:
  // `base`: the parallelism, and the place of the state.
  Choice(const Forecaster& on, const Recipe& recipe, const Candidate& base)
      : on_(on),
        blocks_(on.model_.blocks()),
        recipe_(recipe),
        base_(base),
        large_(on.is_large(recipe, base)),
        micro_batches_(large_ ? on.short_steps(recipe, base).first : on.searched_micro_batches(recipe, base)),
        short_(on.shortened(recipe, base, micro_batches_)) {}

  Forecast run() {
    std::vector<PolicyCandidate> candidates = on_.policies_of(short_, base_);
    const auto fits = [&](const Forecast& f) {
      return static_cast<double>(f.needed()) <= (1 - kAutoMargin) * static_cast<double>(on_.capacity_) && f.host_fits();
    };
    std::map<BlockPolicy, bool> host_fits;
    for (PolicyCandidate& candidate : candidates) {
      const Tried tried = large_ ? few_blocks(candidate.policy) : estimated(candidate.policy);
      if (!large_) tried_[uniform(candidate.policy)] = tried;
      candidate.needed_bytes = tried.needed, candidate.seconds = tried.seconds;
      host_fits[candidate.policy] = tried.host_fits;
      // Nothing is faster than the first, which recomputes least.
      if (large_ && &candidate == &candidates.front() && tried.needed <= static_cast<double>(on_.capacity_)) {
        Forecast full = on_.complete(recipe_, with(uniform(candidate.policy)));
        if (fits(full)) return full;
      }
    }
    // The minimum of device memory among those that fit in host memory, if any do.
    const auto min = std::ranges::min_element(
        candidates, {}, [&](const PolicyCandidate& c) { return std::pair(!host_fits.at(c.policy), c.needed_bytes); });
    if (min->needed_bytes > static_cast<double>(on_.capacity_) &&
        on_.layout_of(recipe_, base_).micro_batches > micro_batches_) {
      return on_.extrapolated(recipe_, with(uniform(min->policy)),
                              large_ ? program::Placing::estimate : program::Placing::offsets);
    }
    const PolicyCandidates policies(candidates, blocks_);
    // The step with all micro-batches may need a little more than the short one; then search again with a lower limit.
    double limit = (1 - kAutoMargin - (large_ ? kPlaced : 0)) * static_cast<double>(on_.capacity_);
    for (int round = 0; round < 3; ++round) {
      const std::optional<Planned> found = search(policies, limit);
      if (!found) break;
      Forecast full = on_.complete(recipe_, with(listed(policies, found->mix)));
      if (fits(full)) return full;
      limit -= static_cast<double>(full.needed()) - found->needed;
    }
    // No mix leaves the margin free: the policy with the minimum memory.
    return on_.complete(recipe_, with(uniform(min->policy)));
  }

 private:
  struct Tried {
    double needed = 0, seconds = 0;
    bool host_fits = true;
    bool placed = false;
  };
  struct Planned {
    Mix mix;
    double needed = 0, seconds = 0;
    bool host_fits = true;
  };

  std::vector<BlockPolicy> uniform(const BlockPolicy& policy) const {
    return std::vector<BlockPolicy>(static_cast<std::size_t>(blocks_), policy);
  }

  // The policy of each block. A step takes as long as its slowest stage, so each model chunk has each policy in the
  // same proportion.
  std::vector<BlockPolicy> listed(const PolicyCandidates& policies, const Mix& mix) const {
    const std::vector<BlockPolicy> all = policies.list(mix);
    if (stages(base_) == 1) return all;
    std::vector<BlockPolicy> out;
    for (const int blocks : blocks_of(base_.parallelism.partition)) {
      for (int i = 0; i < blocks; ++i)
        out.push_back(all[static_cast<std::size_t>((2 * i + 1) * blocks_ / (2 * blocks))]);
    }
    return out;
  }

  Candidate with(std::vector<BlockPolicy> policies) const {
    Candidate out = base_;
    out.blocks = std::move(policies);
    return out;
  }

  Forecast plan(const Recipe& recipe, std::vector<BlockPolicy> policies, program::Placing placing,
                std::int64_t max_needed = std::numeric_limits<std::int64_t>::max()) const {
    return on_.forecast(recipe, with(std::move(policies)), placing, max_needed);
  }

  static Tried tried_as(const Forecast& f) {
    return {static_cast<double>(f.needed()), f.seconds, f.host_fits(), f.placed};
  }
  // The short step with one policy in all blocks.
  Tried estimated(const BlockPolicy& policy) const {
    return tried_as(plan(short_, uniform(policy), program::Placing::estimate));
  }
  // The same from plans of few blocks: linear in the blocks of each stage. Does not look at host memory.
  Tried few_blocks(const BlockPolicy& policy) const {
    const Candidate candidate = with(uniform(policy));
    const std::optional<FewBlocks> few = on_.few_blocks(short_, candidate);
    if (!few) return estimated(policy);
    return {few->needed(candidate.parallelism.partition), few->seconds(candidate.parallelism.partition)};
  }

  // The short step with a mix. Buffers are placed only if the estimate fits; those of a large plan are not.
  Planned planned(const PolicyCandidates& policies, const Mix& mix, double limit) {
    const auto found = tried_.try_emplace(listed(policies, mix));
    Tried& tried = found.first->second;
    if (found.second || (!large_ && !tried.placed && tried.needed <= limit)) {
      const program::Placing placing = large_ ? program::Placing::estimate : program::Placing::offsets;
      tried = tried_as(plan(short_, found.first->first, placing, static_cast<std::int64_t>(limit)));
    }
    return {mix, tried.needed, tried.seconds, tried.host_fits};
  }

  std::optional<Planned> search(const PolicyCandidates& policies, double limit) {
    std::optional<Planned> best;
    const auto judge = [&](const Mix& mix) {
      const Planned p = planned(policies, mix, limit);
      if (p.needed <= limit && p.host_fits && (!best || p.seconds < best->seconds)) best = p;
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
    const double enough = large_ ? 1 - kFaster : 1;
    const auto fills = [&](double needed) { return large_ && needed <= limit && needed >= (1 - kUnused) * limit; };
    for (const auto& [seconds, least_recompute] : fastest_first) {
      if (best && (seconds >= enough * best->seconds || (large_ && std::ssize(tried_) >= kAllMixesOfLarge))) continue;
      // The budget is between `low`, which yields no mix or one that fits, and `high`, which yields one that is too
      // large.
      double budget = limit, low = 0, high = std::numeric_limits<double>::infinity();
      for (int i = 0; i < (large_ ? kMixesOfLarge : kMaxMixes) && high - low > kFinest * limit; ++i) {
        const std::optional<Mix> mix = policies.fastest(budget, least_recompute);
        double next = 0;
        if (mix) {
          const Planned p = judge(*mix);
          if (fills(p.needed)) break;
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
      if (candidate.needed_bytes <= limit && (!best || candidate.seconds < enough * best->seconds))
        judge(policies.uniform(r));
    }
    if (best) improve(policies, limit, *best);
    return best;
  }

  // The estimate's error differs between mixes: a faster neighbour may fit although the estimate is above the limit.
  void improve(const PolicyCandidates& policies, double limit, Planned& best) {
    const int max = std::min(kMaxNeighbours, kNeighbourBlocks / (blocks_ * on_.layout_of(short_, base_).micro_batches));
    for (int tries = 0; tries < max;) {
      bool better = false;
      for (const Mix& mix : policies.faster_neighbours(best.mix)) {
        if (tries++ == max) return;
        const Planned p = planned(policies, mix, limit);
        if (p.needed > limit || !p.host_fits || p.seconds >= best.seconds) continue;
        best = p;
        better = true;
        break;
      }
      if (!better) return;
    }
  }

  static constexpr double kFinest = 5e-4;

  const Forecaster& on_;
  int blocks_;
  const Recipe& recipe_;
  Candidate base_;
  bool large_;
  int micro_batches_;
  Recipe short_;
  std::map<std::vector<BlockPolicy>, Tried> tried_;
};

std::vector<PolicyCandidate> Forecaster::policies_of(const Recipe& recipe, const Candidate& base) const {
  const auto model = models_.of(base.parallelism, 0, model_.blocks());
  return list_policy_candidates(layout_of(recipe, base, *model), *model, offload_of(recipe));
}

Forecast Forecaster::choose(const Recipe& recipe, const Candidate& base) const {
  const auto start = std::chrono::steady_clock::now();
  Forecast out = Choice(*this, recipe, base).run();
  out.chosen = true;
  out.planning_seconds = seconds_since(start);
  return out;
}

}  // namespace hawser::plan
