// memory.activation_checkpointing: auto. A sketch of each policy in all blocks gives a ladder (ladder.h), the ladder
// the fastest mix within a number of bytes, and whole plans say whether that number was right: what a plan needs more
// or less than the ladder thought corrects it. All by count, so that every rank and every run finds the same.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>

#include "base/clock.h"
#include "base/error.h"
#include "plan/forecast.h"
#include "plan/ladder.h"

namespace hawser::plan {

namespace {

// The search plans no more micro-batches than these: the later ones are as the second.
constexpr int kSearchedMicroBatches = 2;
constexpr int kMostMixes = 8;  // for each rung that the last block may have
// Neighbours of what was found: so many, and on large models so many blocks of theirs.
constexpr int kMostNeighbours = 64, kNeighbourBlocks = 768;

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
        short_(on.shortened(recipe, kSearchedMicroBatches)) {}

  Forecast run() {
    std::vector<Rung> rungs = rungs_of(on_.layout_of(short_), on_.model_);
    for (Rung& rung : rungs) {
      const Forecast f = plan(short_, uniform(rung.policy), program::Placing::estimate);
      rung.needed = static_cast<double>(f.needed());
      rung.seconds = f.time.seconds;
    }
    const auto least =
        std::min_element(rungs.begin(), rungs.end(), [](const Rung& a, const Rung& b) { return a.needed < b.needed; });
    const Ladder ladder(rungs, blocks_);
    // A step of more micro-batches may need a little more than the short one; then the search goes again with less.
    double limit = (1 - kAutoMargin) * static_cast<double>(on_.capacity_);
    for (int round = 0; round < 3; ++round) {
      const std::optional<Planned> found = search(ladder, limit);
      if (!found) break;
      const std::vector<Checkpointing> list = ladder.list(found->mix);
      Forecast whole = plan(recipe_, list, program::Placing::offsets);
      if (static_cast<double>(whole.needed()) <= (1 - kAutoMargin) * static_cast<double>(on_.capacity_)) return whole;
      limit -= static_cast<double>(whole.needed()) - found->needed;
    }
    // Nothing leaves the margin free: what needs least.
    return plan(recipe_, uniform(least->policy), program::Placing::offsets);
  }

 private:
  struct Planned {
    Mix mix;
    double needed = 0, seconds = 0;
  };

  std::vector<Checkpointing> uniform(Checkpointing policy) const {
    return std::vector<Checkpointing>(static_cast<std::size_t>(blocks_), policy);
  }

  Forecast plan(const Recipe& recipe, std::vector<Checkpointing> policies, program::Placing placing) const {
    return on_.forecast(with_policies(recipe, std::move(policies)), on_.model_, placing);
  }

  // The short step under a mix: where even what is live does not fit, nothing is placed.
  Planned planned(const Ladder& ladder, const Mix& mix, double limit) {
    const auto [it, added] = tried_.try_emplace(ladder.list(mix));
    Tried& tried = it->second;
    const auto plan_it = [&](program::Placing placing) {
      const Forecast f = plan(short_, it->first, placing);
      tried = {static_cast<double>(f.needed()), f.time.seconds, placing == program::Placing::offsets};
    };
    if (added) plan_it(program::Placing::estimate);
    if (!tried.placed && tried.needed <= limit) plan_it(program::Placing::offsets);
    return {mix, tried.needed, tried.seconds};
  }

  std::optional<Planned> search(const Ladder& ladder, double limit) {
    std::optional<Planned> best;
    const auto judge = [&](const Mix& mix) {
      const Planned p = planned(ladder, mix, limit);
      if (p.needed <= limit && (!best || p.seconds < best->seconds)) best = p;
      return p;
    };
    // The fastest by the model first. It errs by much the same for mixes that end in the same rung.
    std::vector<std::pair<double, std::size_t>> lights;
    for (std::size_t light = 0; light < ladder.rungs().size(); ++light) {
      if (const auto mix = ladder.fastest(limit, light)) lights.emplace_back(mix->seconds, light);
    }
    std::sort(lights.begin(), lights.end());
    for (const auto& [seconds, light] : lights) {
      if (best && seconds >= best->seconds) continue;
      // What the ladder is asked for lies between a number that gives nothing or what fits, and one that gives too
      // much.
      double budget = limit, low = 0, high = std::numeric_limits<double>::infinity();
      for (int i = 0; i < kMostMixes && high - low > kFinest * limit; ++i) {
        const std::optional<Mix> mix = ladder.fastest(budget, light);
        double next = 0;
        if (mix) {
          const Planned p = judge(*mix);
          (p.needed <= limit ? low : high) = budget;
          next = limit - (p.needed - mix->needed);
        } else {
          low = budget;
        }
        if (next <= low || next >= high) next = (low + high) / 2;
        if (std::isinf(next)) break;
        budget = next;
      }
    }
    // Where the model is wrong about one policy in all blocks: no such is faster and fits.
    for (std::size_t r = 0; r < ladder.rungs().size(); ++r) {
      const Rung& rung = ladder.rungs()[r];
      if (rung.needed <= limit && (!best || rung.seconds < best->seconds)) judge(ladder.uniform(r));
    }
    if (best) improve(ladder, limit, *best);
    return best;
  }

  // The model errs by other amounts for other mixes: a faster one near by may fit although the model thinks that it
  // needs more.
  void improve(const Ladder& ladder, double limit, Planned& best) {
    const int most = std::min(kMostNeighbours, kNeighbourBlocks / (blocks_ * on_.layout_of(short_).micro_batches));
    for (int tries = 0; tries < most;) {
      bool better = false;
      for (const Mix& mix : ladder.faster_neighbours(best.mix)) {
        if (tries++ == most) return;
        const Planned p = planned(ladder, mix, limit);
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
