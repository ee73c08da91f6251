#include "plan/ladder.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace hawser::plan {

namespace {

double kept_bytes(const nn::Layer& layer, const Layout& layout, const nn::SavePolicy& policy) {
  double bytes = 0;
  for (const nn::Slot& slot : layer.slots(layout.bounds.rows, layout.compute, policy)) {
    if (slot.shape.rank() == 0 || slot.writer != nn::Pass::forward) continue;
    bytes += static_cast<double>(round_up(slot.shape.elements() * size_of(slot.dtype), Device::kAlignment));
  }
  return bytes * layout.in_flight;
}

}  // namespace

std::vector<Rung> rungs_of(const Layout& layout, const models::Model& model) {
  std::vector<Rung> out;
  for (const Checkpointing policy : {Checkpointing::none, Checkpointing::selective, Checkpointing::qkv,
                                     Checkpointing::gate_up, Checkpointing::projections, Checkpointing::full}) {
    Rung rung{.policy = policy};
    for (int layer = 0; layer < model.layers(); ++layer) {
      nn::SavePolicy save = layout.policies[static_cast<std::size_t>(layer)];
      save.checkpointing = policy;
      rung.kept += kept_bytes(model.layer(layer), layout, save);
    }
    rung.kept /= std::max(1, model.layers() / 2);
    // Long sequences keep attention under `full` too: another name for `projections`.
    if (out.empty() || rung.kept < out.back().kept) out.push_back(rung);
  }
  return out;
}

Ladder::Ladder(std::vector<Rung> rungs, int blocks) : blocks_(blocks) {
  for (const Rung& rung : rungs) {
    const bool beaten = std::any_of(rungs.begin(), rungs.end(), [&](const Rung& other) {
      return other.seconds < rung.seconds && other.kept <= rung.kept && other.needed <= rung.needed;
    });
    if (!beaten) rungs_.push_back(rung);
  }
}

Mix Ladder::mix(std::vector<int> counts) const {
  Mix out{.counts = std::move(counts)};
  const auto lightest = std::find_if(out.counts.begin(), out.counts.end(), [](int n) { return n > 0; });
  const Rung& light = rungs_[static_cast<std::size_t>(lightest - out.counts.begin())];
  out.needed = light.needed;
  out.seconds = light.seconds;
  for (std::size_t r = 0; r < rungs_.size(); ++r) {
    out.needed -= out.counts[r] * (light.kept - rungs_[r].kept);
    out.seconds += out.counts[r] * (rungs_[r].seconds - light.seconds) / blocks_;
  }
  return out;
}

Mix Ladder::uniform(std::size_t rung) const {
  std::vector<int> counts(rungs_.size(), 0);
  counts[rung] = blocks_;
  return mix(std::move(counts));
}

std::vector<Mix> Ladder::faster_neighbours(const Mix& from) const {
  std::set<std::vector<int>> near{from.counts};
  for (int moves = 0; moves < 2; ++moves) {
    for (const std::vector<int>& counts : std::set<std::vector<int>>(near)) {
      for (std::size_t a = 0; a < rungs_.size(); ++a) {
        for (std::size_t b = 0; b < rungs_.size(); ++b) {
          if (a == b || counts[a] == 0) continue;
          std::vector<int> moved = counts;
          --moved[a], ++moved[b];
          near.insert(std::move(moved));
        }
      }
    }
  }
  std::vector<Mix> out;
  for (const std::vector<int>& counts : near) {
    if (Mix other = mix(counts); other.seconds < from.seconds) out.push_back(std::move(other));
  }
  std::stable_sort(out.begin(), out.end(), [](const Mix& a, const Mix& b) { return a.needed < b.needed; });
  return out;
}

std::vector<Checkpointing> Ladder::list(const Mix& mix) const {
  std::vector<Checkpointing> out;
  for (std::size_t r = rungs_.size(); r-- > 0;) {
    out.insert(out.end(), static_cast<std::size_t>(mix.counts[r]), rungs_[r].policy);
  }
  return out;
}

// All ways to give blocks to the rungs that are heavier than `light`; the last two rungs share what is left in the one
// way that is fastest.
struct Ladder::Search {
  const std::vector<Rung>& rungs;
  double blocks;
  std::size_t light = 0;
  std::vector<int> counts;
  std::optional<Mix> best;

  double freed(std::size_t rung) const { return rungs[light].kept - rungs[rung].kept; }
  double slower(std::size_t rung) const { return (rungs[rung].seconds - rungs[light].seconds) / blocks; }

  void offer(double needed, double seconds) {
    if (!best || seconds < best->seconds) best = Mix{counts, needed, seconds};
  }

  // `over`: bytes that must still go; `left`: blocks of rung `light`, at least one of which stays.
  void give(std::size_t rung, int left, double over, double budget, double seconds) {
    if (best && seconds >= best->seconds) return;
    if (rung == light) {
      if (over <= 0) offer(budget + over, seconds);
      return;
    }
    const int first = rung == light + 1 ? static_cast<int>(std::max(0.0, std::ceil(over / freed(rung)))) : 0;
    const int last = rung == light + 1 ? first : left - 1;
    for (int n = first; n <= std::min(last, left - 1); ++n) {
      counts[rung] = n;
      counts[light] = left - n;
      give(rung - 1, left - n, over - n * freed(rung), budget, seconds + n * slower(rung));
      if (over - n * freed(rung) <= 0) break;  // more only costs
    }
    counts[rung] = 0;
  }
};

std::optional<Mix> Ladder::fastest(double budget, std::size_t light) const {
  Search search{.rungs = rungs_,
                .blocks = static_cast<double>(blocks_),
                .light = light,
                .counts = std::vector<int>(rungs_.size(), 0),
                .best = {}};
  search.counts[light] = blocks_;
  search.give(rungs_.size() - 1, blocks_, rungs_[light].needed - budget, budget, rungs_[light].seconds);
  return std::move(search.best);
}

std::optional<Mix> Ladder::fastest(double budget) const {
  std::optional<Mix> best;
  for (std::size_t light = 0; light < rungs_.size(); ++light) {
    std::optional<Mix> mix = fastest(budget, light);
    if (mix && (!best || mix->seconds < best->seconds)) best = std::move(mix);
  }
  return best;
}

}  // namespace hawser::plan
