#include "plan/policy_candidates.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <set>

#include "nn/row_tiles.h"
#include "step/computations.h"

namespace hawser::plan {

namespace {

// Bytes that forward of a micro-batch stores, by the pass that ends their lifetime.
struct Stored {
  double until_backward = 0, until_weight_gradients = 0;
};

Stored stored_by(const models::Model& model, int layer, const Layout& layout, const nn::Seams& seams,
                 const nn::SavePolicy& policy) {
  Stored out;
  for (const nn::SavedSpec& spec : nn::saved_specs_of(model.layer(layer), layout.bounds.row_counts(), layout.compute,
                                                      policy, model.trainable(layer), seams)) {
    if (spec.shape.rank() == 0 || spec.writer != nn::Pass::forward) continue;
    const bool delayed = policy.delay_weight_gradients && spec.last_reader == nn::Pass::backward_weight;
    (delayed ? out.until_weight_gradients : out.until_backward) +=
        static_cast<double>(round_up(spec.shape.elements() * size_of(spec.dtype), Device::kAlignment));
  }
  return out;
}

// How many micro-batches a model chunk stores at a time follows from the passes of its stage.
class StoredBytes {
 public:
  StoredBytes(const Layout& layout, const models::Model& model) : layout_(layout), model_(model) {
    for (int stage = 0; stage < layout.partition.stages; ++stage) {
      passes_.push_back(schedule_options(layout, step::Purpose::train, stage).passes);
    }
  }

  // Of the stage that stores the most at a time, divided by the blocks of the model. `layers`: by layer.
  double of_a_block(const std::vector<Stored>& layers) const {
    std::vector<Stored> model_chunks;
    for (int model_chunk = 0; model_chunk < layout_.partition.model_chunks(); ++model_chunk) {
      const models::LayerRange range = models::layers_of(model_, layout_.partition, model_chunk);
      Stored& sum = model_chunks.emplace_back();
      for (int layer = range.begin; layer < range.end; ++layer) {
        sum.until_backward += layers[static_cast<std::size_t>(layer)].until_backward;
        sum.until_weight_gradients += layers[static_cast<std::size_t>(layer)].until_weight_gradients;
      }
    }
    double most = 0;
    for (const std::vector<step::Pass>& passes : passes_) {
      double stored = 0;
      for (const step::Pass& pass : passes) {
        const Stored& model_chunk = model_chunks[static_cast<std::size_t>(pass.model_chunk)];
        switch (pass.kind) {
          case step::Pass::Kind::forward:
            stored += model_chunk.until_backward + model_chunk.until_weight_gradients;
            break;
          case step::Pass::Kind::backward:
            stored -= model_chunk.until_backward;
            break;
          case step::Pass::Kind::weight_gradients:
            stored -= model_chunk.until_weight_gradients;
            break;
        }
        most = std::max(most, stored);
      }
    }
    return most / std::max(1, model_.blocks());
  }

 private:
  const Layout& layout_;
  const models::Model& model_;
  std::vector<std::vector<step::Pass>> passes_;  // by stage
};

}  // namespace

std::vector<PolicyCandidate> list_policy_candidates(const Layout& layout, const models::Model& model,
                                                    std::optional<bool> offload) {
  const auto mesh = comm::make_meta_mesh(layout.mesh, Rank(0));
  const nn::Seams seams = make_seams(layout, *mesh);
  const double input =
      static_cast<double>(layout.bounds.row_counts().residual * model.width() * size_of(layout.compute));
  const auto layers = static_cast<std::size_t>(model.layers());
  const StoredBytes stored(layout, model);
  const double inputs = stored.of_a_block(std::vector<Stored>(layers, {.until_backward = input}));
  std::vector<PolicyCandidate> out;
  for (const Checkpointing policy :
       {Checkpointing::none, Checkpointing::selective, Checkpointing::qkv, Checkpointing::gate_up,
        Checkpointing::projections, Checkpointing::full, Checkpointing::block}) {
    PolicyCandidate candidate{
        .policy = {.checkpointing = policy, .delay_weight_gradients = layout.policies.front().delay_weight_gradients}};
    std::vector<nn::SavePolicy> policies = layout.policies;
    for (nn::SavePolicy& save : policies) save.checkpointing = policy;
    const std::vector<int> writers = step::writers_of_inputs(model, layout.partition, policies);
    std::vector<Stored> by_layer;
    for (std::size_t layer = 0; layer < layers; ++layer) {
      by_layer.push_back(stored_by(model, static_cast<int>(layer), layout, seams, policies[layer]));
      if (writers[layer] < 0) by_layer.back().until_backward += input;
    }
    candidate.stored_bytes = stored.of_a_block(by_layer) - inputs;
    if (!offload.value_or(false)) out.push_back(candidate);
    if (!offload.value_or(true)) continue;
    candidate.policy.offload = true;
    candidate.host_bytes = candidate.stored_bytes + inputs;
    candidate.stored_bytes = -inputs;
    out.push_back(candidate);
  }
  const auto bytes = [](const PolicyCandidate& candidate) {
    return std::pair(candidate.stored_bytes, candidate.host_bytes);
  };
  std::ranges::stable_sort(out, std::greater(), bytes);
  const auto [first, last] = std::ranges::unique(out, {}, bytes);
  out.erase(first, last);
  return out;
}

PolicyCandidates::PolicyCandidates(std::vector<PolicyCandidate> candidates, int blocks) : blocks_(blocks) {
  for (const PolicyCandidate& candidate : candidates) {
    const bool beaten = std::any_of(candidates.begin(), candidates.end(), [&](const PolicyCandidate& other) {
      return other.seconds < candidate.seconds && other.stored_bytes <= candidate.stored_bytes &&
             other.host_bytes <= candidate.host_bytes && other.needed_bytes <= candidate.needed_bytes;
    });
    if (!beaten) candidates_.push_back(candidate);
  }
}

Mix PolicyCandidates::mix(std::vector<int> counts) const {
  Mix out{.counts = std::move(counts)};
  const auto first = std::find_if(out.counts.begin(), out.counts.end(), [](int n) { return n > 0; });
  const PolicyCandidate& least_recompute = candidates_[static_cast<std::size_t>(first - out.counts.begin())];
  out.needed_bytes = least_recompute.needed_bytes;
  out.seconds = least_recompute.seconds;
  for (std::size_t r = 0; r < candidates_.size(); ++r) {
    out.needed_bytes -= out.counts[r] * (least_recompute.stored_bytes - candidates_[r].stored_bytes);
    out.seconds += out.counts[r] * (candidates_[r].seconds - least_recompute.seconds) / blocks_;
  }
  return out;
}

Mix PolicyCandidates::uniform(std::size_t candidate) const {
  std::vector<int> counts(candidates_.size(), 0);
  counts[candidate] = blocks_;
  return mix(std::move(counts));
}

std::vector<Mix> PolicyCandidates::faster_neighbours(const Mix& from) const {
  std::set<std::vector<int>> near{from.counts};
  for (int moves = 0; moves < 2; ++moves) {
    for (const std::vector<int>& counts : std::set<std::vector<int>>(near)) {
      for (std::size_t a = 0; a < candidates_.size(); ++a) {
        for (std::size_t b = 0; b < candidates_.size(); ++b) {
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
  std::stable_sort(out.begin(), out.end(), [](const Mix& a, const Mix& b) { return a.needed_bytes < b.needed_bytes; });
  return out;
}

std::vector<BlockPolicy> PolicyCandidates::list(const Mix& mix) const {
  std::vector<BlockPolicy> out;
  for (std::size_t r = candidates_.size(); r-- > 0;) {
    out.insert(out.end(), static_cast<std::size_t>(mix.counts[r]), candidates_[r].policy);
  }
  return out;
}

// Search over all ways to assign blocks to `least_recompute` and the candidates that store less. Blocks that no other
// candidate takes are divided between `least_recompute` and the candidate after it, in the one way that is fastest.
struct PolicyCandidates::Search {
  const std::vector<PolicyCandidate>& candidates;
  double blocks;
  std::size_t least_recompute = 0;
  std::vector<int> counts;
  std::optional<Mix> best;

  double freed(std::size_t candidate) const {
    return candidates[least_recompute].stored_bytes - candidates[candidate].stored_bytes;
  }
  double slower(std::size_t candidate) const {
    return (candidates[candidate].seconds - candidates[least_recompute].seconds) / blocks;
  }

  // By the index of the last candidate that blocks may still be assigned to: the least seconds that a byte costs, and
  // the most bytes that a block frees.
  std::vector<double> cheapest, most;

  void price() {
    cheapest.assign(candidates.size(), 0);
    most.assign(candidates.size(), 0);
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t c = least_recompute + 1; c < candidates.size(); ++c) {
      if (freed(c) > 0) least = std::min(least, std::max(0.0, slower(c) / freed(c)));
      cheapest[c] = std::isinf(least) ? 0 : least;
      most[c] = std::max(most[c - 1], freed(c));
    }
  }

  void consider(double needed, double seconds) {
    if (!best || seconds < best->seconds) best = Mix{counts, needed, seconds};
  }

  // Assigns blocks to `candidate` and those before it. `over`: bytes above the budget; `left`: blocks that still have
  // `least_recompute`, of which at least one keeps it.
  void assign(std::size_t candidate, int left, double over, double budget, double seconds) {
    constexpr double kRounded = 1 - 1e-9;
    const double bytes = std::max(0.0, over) * cheapest[candidate] * kRounded;  // seconds, at least
    if (best && seconds + bytes >= best->seconds) return;
    if (over * kRounded > (left - 1) * most[candidate]) return;
    if (candidate == least_recompute) {
      if (over <= 0) consider(budget + over, seconds);
      return;
    }
    const double enough = over <= 0 ? 0 : freed(candidate) > 0 ? std::ceil(over / freed(candidate)) : left;
    const int first = candidate == least_recompute + 1 ? static_cast<int>(std::min<double>(left, enough)) : 0;
    const int last = candidate == least_recompute + 1 ? first : left - 1;
    for (int n = first; n <= std::min(last, left - 1); ++n) {
      counts[candidate] = n;
      counts[least_recompute] = left - n;
      assign(candidate - 1, left - n, over - n * freed(candidate), budget, seconds + n * slower(candidate));
      if (over - n * freed(candidate) <= 0) break;  // more blocks only cost time
    }
    counts[candidate] = 0;
  }
};

std::optional<Mix> PolicyCandidates::fastest(double budget, std::size_t least_recompute) const {
  Search search{.candidates = candidates_,
                .blocks = static_cast<double>(blocks_),
                .least_recompute = least_recompute,
                .counts = std::vector<int>(candidates_.size(), 0),
                .best = {}};
  search.counts[least_recompute] = blocks_;
  search.price();
  search.assign(candidates_.size() - 1, blocks_, candidates_[least_recompute].needed_bytes - budget, budget,
                candidates_[least_recompute].seconds);
  return std::move(search.best);
}

std::optional<Mix> PolicyCandidates::fastest(double budget) const {
  std::optional<Mix> best;
  for (std::size_t least_recompute = 0; least_recompute < candidates_.size(); ++least_recompute) {
    std::optional<Mix> mix = fastest(budget, least_recompute);
    if (mix && (!best || mix->seconds < best->seconds)) best = std::move(mix);
  }
  return best;
}

}  // namespace hawser::plan
