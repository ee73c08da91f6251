// The search for settings that fit.
//
// Settings are tried on the same model with few blocks first: bytes and seconds are close to linear in the number of
// blocks, so two small plans say where the whole one will be. Those that look as if they fit are planned whole, fastest
// first, and only what then fits is offered.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>

#include "base/error.h"
#include "config/config.h"
#include "plan/forecast.h"

namespace hawser::plan {

namespace {

// What the search may turn.
struct Settings {
  int context = 1, hybrid = 0;
  std::int64_t micro_batch = 1;
  GradientAccumulation accumulation = GradientAccumulation::sharded;
  Checkpointing light = Checkpointing::none;  // of the later blocks
  Checkpointing heavy = Checkpointing::none;  // of the first `mixed` blocks
  int mixed = 0;
};

Recipe with(const Recipe& base, const Settings& s, int blocks) {
  Recipe out = base;
  out.parallel.context_parallel_degree = s.context;
  out.parallel.hybrid_shard_degree = s.hybrid;
  out.parallel.gradient_accumulation = s.accumulation;
  out.train.micro_batch_size = s.micro_batch;
  out.memory.activation_checkpointing = s.light;
  out.memory.per_layer.clear();
  if (s.mixed > 0) {
    out.memory.per_layer.assign(static_cast<std::size_t>(blocks), s.light);
    std::fill_n(out.memory.per_layer.begin(), s.mixed, s.heavy);
  }
  return out;
}

std::vector<Change> changes_between(const Recipe& base, const Recipe& other) {
  std::vector<Change> out;
  const auto add = [&](const char* key, const auto& before, const auto& after) {
    if (before != after) out.push_back({key, cat(after)});
  };
  add("memory.activation_checkpointing", checkpointing_text(base.memory), checkpointing_text(other.memory));
  add("train.micro_batch_size", base.train.micro_batch_size, other.train.micro_batch_size);
  add("parallel.context_parallel_degree", base.parallel.context_parallel_degree,
      other.parallel.context_parallel_degree);
  add("parallel.hybrid_shard_degree", base.parallel.hybrid_shard_degree, other.parallel.hybrid_shard_degree);
  const auto policy = [](const Recipe& r) {
    return std::string(r.parallel.gradient_accumulation == GradientAccumulation::local ? "local" : "sharded");
  };
  add("parallel.gradient_accumulation", policy(base), policy(other));
  return out;
}

// The values nearest to `now`, itself first.
template <class Number>
std::vector<Number> nearest_few(std::vector<Number> values, Number now, std::size_t most) {
  const auto distance = [&](Number v) { return v > now ? double(v) / double(now) : double(now) / double(v); };
  std::stable_sort(values.begin(), values.end(), [&](Number a, Number b) { return distance(a) < distance(b); });
  if (values.size() > most) values.resize(most);
  return values;
}

}  // namespace

std::string Change::flag() const {
  const std::string text = key + "=" + value;
  return text.find('[') == std::string::npos ? "--set " + text : "--set '" + text + "'";
}

std::string Offer::flags() const {
  std::string out;
  for (const Change& change : changes) out += (out.empty() ? "" : " ") + change.flag();
  return out;
}

class Forecaster::Search {
 public:
  explicit Search(const Forecaster& on) : on_(on), blocks_(static_cast<int>(on.model_.description().blocks.size())) {
    for (const int count : {kSmall, 2 * kSmall}) {
      if (blocks_ <= 2 * kSmall) break;
      models::ModelDescription description = on.model_.description();
      description.blocks.resize(static_cast<std::size_t>(count));
      small_.push_back(std::make_unique<models::Model>(std::move(description)));
    }
  }

  std::vector<Offer> run(int count) {
    find_candidates();
    std::stable_sort(candidates_.begin(), candidates_.end(),
                     [](const Candidate& a, const Candidate& b) { return a.score() > b.score(); });
    std::vector<Offer> offers;
    std::set<std::size_t> planned;
    // First those that are not a slower and longer way to say what is offered already.
    for (const bool any : {false, true}) {
      for (std::size_t i = 0; i < candidates_.size() && static_cast<int>(offers.size()) < count; ++i) {
        if (planned.contains(i) || (!any && repeats(candidates_[i], offers))) continue;
        planned.insert(i);
        std::optional<Offer> offer = plan(candidates_[i]);
        if (offer && !changes_nothing(*offer, offers)) offers.push_back(std::move(*offer));
        if (planned.size() >= kMostWholePlans) break;
      }
    }
    std::stable_sort(offers.begin(), offers.end(),
                     [](const Offer& a, const Offer& b) { return a.tokens_per_second > b.tokens_per_second; });
    return offers;
  }

 private:
  static constexpr int kSmall = 2;
  static constexpr std::size_t kMostWholePlans = 40;
  static constexpr int kMostSettings = 120;  // looked at: some seconds. By count, so that all ranks find the same

  struct Sketch {
    double needed = 0, seconds = 0;
  };
  struct Candidate {
    Settings settings;
    Sketch sketch;
    double freed = 0;  // bytes that one block more of the heavier policy frees; mixes only
    std::vector<Change> changes;
    // Fast first; of two that are as good as equal, the one that changes less.
    double score() const { return (1.0 - 0.004 * static_cast<double>(changes.size())) / sketch.seconds; }
  };

  void find_candidates() {
    const Recipe& base = on_.recipe_;
    int looked_at = 0;
    std::vector<int> contexts;
    for (int c = 1; c <= on_.world_; ++c) {
      if (on_.world_ % c == 0) contexts.push_back(c);
    }
    for (const int context : nearest_few(contexts, base.parallel.context_parallel_degree, 5)) {
      for (const int hybrid : hybrids(context)) {
        const std::int64_t data_ranks = on_.world_ / context;
        for (const std::int64_t micro : micro_batches(data_ranks)) {
          Settings s{.context = context, .hybrid = hybrid, .micro_batch = micro};
          // Where gradients are added or cut up at all, the two ways to accumulate them differ.
          const bool accumulates = base.train.global_batch_size > data_ranks * micro && on_.world_ > 1 && hybrid != 1;
          for (const auto accumulation : {GradientAccumulation::sharded, GradientAccumulation::local}) {
            if (!accumulates && accumulation != base.parallel.gradient_accumulation) continue;
            s.accumulation = accumulation;
            Problems problems;
            check_layout(with(base, s, blocks_), on_.world_, problems);
            if (!problems.empty()) continue;
            try_checkpointing(s);
            if (++looked_at == kMostSettings) return;
          }
        }
      }
    }
  }

  std::vector<int> hybrids(int context) const {
    const int now = on_.recipe_.parallel.hybrid_shard_degree;
    std::vector<int> out{now};
    const auto add = [&](int degree) {
      const bool sound = degree <= 1 || (degree % context == 0 && on_.world_ % degree == 0);
      if (sound && std::find(out.begin(), out.end(), degree) == out.end()) out.push_back(degree);
    };
    add(0);
    // Twice, four and eight times what there is; a node's worth.
    if (now > 0) {
      for (int k = 2; k <= 8; k *= 2) {
        if (now * k < on_.world_) add(now * k);
      }
    } else if (on_.world_ > 8) {
      add(8);
    }
    return out;
  }

  std::vector<std::int64_t> micro_batches(std::int64_t data_ranks) const {
    const TrainRecipe& train = on_.recipe_.train;
    std::vector<std::int64_t> out;
    for (std::int64_t m = 1; m <= train.global_batch_size; ++m) {
      if (train.global_batch_size % (m * data_ranks) == 0) out.push_back(m);
    }
    if (out.empty()) out.push_back(1);
    return nearest_few(out, train.micro_batch_size, 4);
  }

  // The three policies, and mixes of two where the lighter one is too large.
  void try_checkpointing(Settings s) {
    std::map<Checkpointing, Sketch> whole;
    for (const Checkpointing policy : {Checkpointing::none, Checkpointing::selective, Checkpointing::full}) {
      s.light = policy;
      try {
        whole[policy] = sketch(s);
      } catch (const UserError&) {
        return;  // what the recipe asks for does not go with this layout (run.deterministic), under any policy
      }
      add(s, whole[policy]);
    }
    const double capacity = static_cast<double>(on_.capacity_);
    for (const auto& [light, a] : whole) {
      for (const auto& [heavy, b] : whole) {
        if (heavy <= light || a.needed <= capacity || b.needed > capacity || a.needed <= b.needed) continue;
        if (b.seconds < kWorthMixing * a.seconds) continue;
        const double share = (a.needed - capacity) / (a.needed - b.needed);
        Settings mixed = s;
        mixed.light = light, mixed.heavy = heavy;
        mixed.mixed = static_cast<int>(share * blocks_) + 1;
        if (mixed.mixed >= blocks_) continue;
        const double part = static_cast<double>(mixed.mixed) / blocks_;
        add(mixed, {a.needed + part * (b.needed - a.needed), a.seconds + part * (b.seconds - a.seconds)},
            (a.needed - b.needed) / blocks_);
      }
    }
  }
  static constexpr double kWorthMixing = 1.02;

  void add(const Settings& s, const Sketch& sketch, double freed = 0) {
    // A sketch may be off by a little; the whole plan has the last word.
    if (sketch.needed > 1.03 * static_cast<double>(on_.capacity_)) return;
    std::vector<Change> changes = changes_between(on_.recipe_, with(on_.recipe_, s, blocks_));
    if (!changes.empty()) candidates_.push_back({s, sketch, freed, std::move(changes)});
  }

  Sketch sketch(const Settings& s) const {
    const auto at = [&](const models::Model& model) {
      const Forecast f = on_.forecast(with(on_.recipe_, s, 0), model, program::Placing::estimate);
      return Sketch{static_cast<double>(f.needed()), f.time.seconds};
    };
    if (small_.empty()) return at(on_.model_);
    const Sketch a = at(*small_[0]), b = at(*small_[1]);
    const double more = static_cast<double>(blocks_ - 2 * kSmall) / kSmall;
    return {b.needed + more * (b.needed - a.needed), b.seconds + more * (b.seconds - a.seconds)};
  }

  static bool repeats(const Candidate& candidate, const std::vector<Offer>& offers) {
    return std::any_of(offers.begin(), offers.end(), [&](const Offer& offer) {
      return std::all_of(offer.changes.begin(), offer.changes.end(), [&](const Change& change) {
        return std::any_of(candidate.changes.begin(), candidate.changes.end(),
                           [&](const Change& other) { return other.key == change.key && other.value == change.value; });
      });
    });
  }

  // As large and as fast as one that is offered: another name for it.
  static bool changes_nothing(const Offer& offer, const std::vector<Offer>& offers) {
    return std::any_of(offers.begin(), offers.end(), [&](const Offer& other) {
      return offer.needed == other.needed && offer.tokens_per_second == other.tokens_per_second;
    });
  }

  std::optional<Offer> plan(const Candidate& candidate) const {
    Settings s = candidate.settings;
    // A mix that is a little too large takes a few blocks more.
    for (int attempt = 0; attempt < (s.mixed > 0 ? 4 : 1); ++attempt) {
      Recipe recipe = with(on_.recipe_, s, blocks_);
      const Forecast f = on_.forecast(recipe, on_.model_, program::Placing::offsets);
      if (f.fits()) {
        std::vector<Change> changes = changes_between(on_.recipe_, recipe);
        return Offer{std::move(changes), std::move(recipe), f.needed(), f.tokens_per_second};
      }
      if (s.mixed == 0) break;
      s.mixed += 1 + static_cast<int>(static_cast<double>(f.needed() - on_.capacity_) / candidate.freed);
      if (s.mixed >= blocks_) break;
    }
    return std::nullopt;
  }

  const Forecaster& on_;
  int blocks_;
  std::vector<std::unique_ptr<models::Model>> small_;  // the model with few blocks; empty: it has few
  std::vector<Candidate> candidates_;
};

std::vector<Offer> Forecaster::offers(int count) const {
  return Search(*this).run(count);
}

}  // namespace hawser::plan
