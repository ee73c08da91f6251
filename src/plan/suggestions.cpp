// Search for settings that fit.
//
// Settings are first tried on the same model with few blocks: bytes and seconds are nearly linear in the number of
// blocks, so two small plans predict the full one. Settings that are predicted to fit get a complete plan, fastest
// first, and only those that then fit are suggested. Checkpointing stays as it is or becomes `auto` (choose.cpp).
#include <algorithm>
#include <bit>
#include <functional>
#include <memory>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "config/config.h"
#include "plan/candidate.h"
#include "plan/disk.h"
#include "plan/forecast.h"
#include "plan/make_optimizer.h"
#include "plan/pipeline_form.h"
#include "plan/policy_candidates.h"

namespace hawser::plan {

// The settings that the search varies.
struct SearchSettings {
  int tensor = 1, pipeline = 1, context = 1, hybrid = 0;
  ContextComm context_comm = ContextComm::all_gather;
  std::int64_t micro_batch = 1;
  GradientAccumulation accumulation = GradientAccumulation::sharded;
  ShardPolicy sharding = ShardPolicy::parameters;
  bool automatic = false;                                  // checkpointing is auto; otherwise as in the recipe
  std::optional<bool> activations = false, state = false;  // memory.activation_offload, memory.optimizer_offload
  bool weights = false;                                    // memory.weight_offload
  std::int64_t mlp_tile_rows = 0;                          // memory.mlp_tile_rows
  std::shared_ptr<const Parallelism> parallelism;          // null: that of the recipe
};

namespace {

Recipe with(const Recipe& base, const SearchSettings& s) {
  Recipe out = base;
  out.parallel.tensor_parallel_degree = s.tensor;
  if (s.pipeline != base.parallel.pipeline_parallel_degree) out.parallel.pipeline_partition.clear();
  out.parallel.pipeline_parallel_degree = s.pipeline;
  out.parallel.context_parallel_degree = s.context;
  out.parallel.context_comm = s.context_comm;
  out.parallel.hybrid_shard_degree = s.hybrid;
  out.parallel.gradient_accumulation = s.accumulation;
  out.parallel.sharding = s.sharding;
  out.train.micro_batch_size = s.micro_batch;
  out.memory.activation_offload = s.activations;
  out.memory.optimizer_offload = s.state;
  out.memory.weight_offload = s.weights;
  out.memory.mlp_tile_rows = s.mlp_tile_rows;
  if (s.automatic) {
    out.memory.activation_checkpointing = Checkpointing::automatic;
    out.memory.per_layer.clear();
  }
  return out;
}

SearchSettings settings_of(const Recipe& recipe) {
  return {.tensor = recipe.parallel.tensor_parallel_degree,
          .pipeline = recipe.parallel.pipeline_parallel_degree,
          .context = recipe.parallel.context_parallel_degree,
          .hybrid = recipe.parallel.hybrid_shard_degree,
          .context_comm = recipe.parallel.context_comm,
          .micro_batch = recipe.train.micro_batch_size,
          .accumulation = recipe.parallel.gradient_accumulation,
          .sharding = recipe.parallel.sharding,
          .activations = recipe.memory.activation_offload,
          .state = recipe.memory.optimizer_offload,
          .weights = recipe.memory.weight_offload,
          .mlp_tile_rows = recipe.memory.mlp_tile_rows};
}

std::vector<Change> changes_between(const Recipe& base, const Recipe& other) {
  std::vector<Change> out;
  const auto add = [&](const char* key, const auto& before, const auto& after) {
    if (before != after) out.push_back({key, cat(after)});
  };
  add("memory.activation_checkpointing", checkpointing_text(base.memory), checkpointing_text(other.memory));
  const auto flag = [](const std::optional<bool>& value) {
    return std::string(!value ? "auto" : *value ? "true" : "false");
  };
  add("memory.mlp_tile_rows", base.memory.mlp_tile_rows, other.memory.mlp_tile_rows);
  add("memory.activation_offload", flag(base.memory.activation_offload), flag(other.memory.activation_offload));
  add("memory.optimizer_offload", flag(base.memory.optimizer_offload), flag(other.memory.optimizer_offload));
  add("memory.weight_offload", flag(base.memory.weight_offload), flag(other.memory.weight_offload));
  add("train.micro_batch_size", base.train.micro_batch_size, other.train.micro_batch_size);
  add("parallel.tensor_parallel_degree", base.parallel.tensor_parallel_degree, other.parallel.tensor_parallel_degree);
  add("parallel.pipeline_parallel_degree", base.parallel.pipeline_parallel_degree,
      other.parallel.pipeline_parallel_degree);
  add("parallel.pipeline_partition", partition_text(base.parallel), partition_text(other.parallel));
  add("parallel.context_parallel_degree", base.parallel.context_parallel_degree,
      other.parallel.context_parallel_degree);
  add("parallel.context_comm", context_text({base.parallel.context_comm}), context_text({other.parallel.context_comm}));
  add("parallel.hybrid_shard_degree", base.parallel.hybrid_shard_degree, other.parallel.hybrid_shard_degree);
  const auto policy = [](const Recipe& r) {
    return std::string(r.parallel.gradient_accumulation == GradientAccumulation::local ? "local" : "sharded");
  };
  add("parallel.gradient_accumulation", policy(base), policy(other));
  const auto sharding = [](const Recipe& r) {
    return std::string(r.parallel.sharding == ShardPolicy::optimizer ? "optimizer" : "parameters");
  };
  add("parallel.sharding", sharding(base), sharding(other));
  return out;
}

// Whether weights and the optimizer's state, sharded over a number of ranks, fit in a rank's capacity.
bool state_fits(const models::Model& model, const Layout& layout, int shards, std::int64_t capacity) {
  return checkpoint_bytes(model, layout) / shards <= capacity;
}

// The `max` values nearest to `now`, in order of distance, beginning with `now`.
template <class Number>
std::vector<Number> nearest_few(std::vector<Number> values, Number now, std::size_t max) {
  const auto distance = [&](Number v) { return v > now ? double(v) / double(now) : double(now) / double(v); };
  std::stable_sort(values.begin(), values.end(), [&](Number a, Number b) { return distance(a) < distance(b); });
  if (values.size() > max) values.resize(max);
  return values;
}

}  // namespace

std::string Change::flag() const {
  return "--set " + shell_quoted(key + "=" + value);
}

std::string Suggestion::flags() const {
  std::string out;
  for (const Change& change : changes) out += (out.empty() ? "" : " ") + change.flag();
  return out;
}

class Forecaster::Search {
 public:
  explicit Search(const Forecaster& on) : on_(on), blocks_(on.model_.blocks()) {}

  std::vector<Suggestion> run(int count) {
    const Layout own = on_.layout_of(on_.recipe_, on_.candidate());
    if (state_fits(on_.model_, own, on_.world_, on_.capacity_)) {
      find_candidates();
      find_other_splits();
    } else if (!on_.target_.cuda) {
      Suggestion state{.changes = {}, .recipe = on_.recipe_, .candidate = on_.candidate()};
      state.needed = checkpoint_bytes(on_.model_, own) / on_.world_;
      least_ = std::move(state);
    }
    try_offload(settings_of(on_.recipe_));
    try_tiles(own);
    std::stable_sort(tried_.begin(), tried_.end(),
                     [](const Tried& a, const Tried& b) { return a.score() > b.score(); });
    std::vector<Suggestion> suggestions;
    std::set<std::size_t> planned;
    // In the first round, skip candidates that contain all changes of an earlier suggestion.
    for (const bool any : {false, true}) {
      for (std::size_t i = 0; i < tried_.size() && static_cast<int>(suggestions.size()) < count; ++i) {
        if (planned.contains(i) || (!any && repeats(tried_[i], suggestions))) continue;
        planned.insert(i);
        std::optional<Suggestion> suggestion = plan(tried_[i]);
        if (suggestion && !changes_nothing(*suggestion, suggestions)) suggestions.push_back(std::move(*suggestion));
        if (planned.size() >= kMaxFullPlans) break;
      }
    }
    std::stable_sort(suggestions.begin(), suggestions.end(), [](const Suggestion& a, const Suggestion& b) {
      return a.tokens_per_second > b.tokens_per_second;
    });
    return suggestions;
  }

  // After run(): of all settings that were tried, the one that needs the least memory.
  const std::optional<Suggestion>& least() const { return least_; }

 private:
  static constexpr std::size_t kMaxFullPlans = 40;
  // Takes some seconds; counts, so that all ranks find the same. The second is of each other number of tensor ranks, or
  // of stages.
  static constexpr int kMaxSettings = 120, kMaxOfOthers = 30;
  static constexpr int kMaxTensorRanks = 8;  // they exchange activations in each layer: of one host
  static constexpr int kMaxStages = 16;

  struct Tried {
    SearchSettings settings;
    Sketch sketch;
    std::vector<Change> changes;
    // Faster is better; of nearly equal ones, the one with fewer changes.
    double score() const { return (1.0 - 0.004 * static_cast<double>(changes.size())) / sketch.seconds; }
  };

  void find_candidates() {
    const ParallelRecipe& own = on_.recipe_.parallel;
    for (const int tensor : tensor_degrees()) {
      const bool same = tensor == own.tensor_parallel_degree;
      find_candidates(tensor, own.pipeline_parallel_degree, same ? kMaxSettings : kMaxOfOthers);
    }
    for (const int stages : pipeline_degrees()) find_candidates(own.tensor_parallel_degree, stages, kMaxOfOthers);
  }

  // On GPUs: others than the recipe's, the nearest ones that divide the ranks and the model. Fewer micro-batches than
  // stages would leave most of a step idle.
  std::vector<int> pipeline_degrees() const {
    const int own = on_.recipe_.parallel.pipeline_parallel_degree, tensor = on_.recipe_.parallel.tensor_parallel_degree;
    std::vector<int> out;
    for (int stages = 1; on_.target_.cuda && stages <= kMaxStages; stages *= 2) {
      if (stages == own || on_.world_ % (stages * tensor) != 0) continue;
      SearchSettings s = settings_of(on_.recipe_);
      s.pipeline = stages;
      const Recipe recipe = with(on_.recipe_, s);
      Problems problems;
      check_pipeline(recipe, blocks_, problems);
      const std::int64_t in_turn =
          recipe.train.global_batch_size / (recipe.parallel.data_ranks(on_.world_) * recipe.train.micro_batch_size);
      if (problems.empty() && in_turn >= stages) out.push_back(stages);
    }
    return nearest_few(out, own, 2);
  }

  // The recipe's, and on GPUs the nearest ones that divide the ranks and the model.
  std::vector<int> tensor_degrees() const {
    const int own = on_.recipe_.parallel.tensor_parallel_degree;
    std::vector<int> out;
    for (int tensor = 1; tensor <= std::max(own, kMaxTensorRanks); tensor *= 2) {
      if (tensor == own || !on_.target_.cuda || ranks_of_stage() % tensor != 0) continue;
      Problems problems;
      SearchSettings s = settings_of(on_.recipe_);
      s.tensor = tensor;
      models::check_share(on_.model_.whole(), share_of(with(on_.recipe_, s).parallel, 0), {}, problems);
      if (problems.empty()) out.push_back(tensor);
    }
    out.insert(out.begin(), own);
    return nearest_few(out, own, 3);
  }

  int ranks_of_stage() const { return on_.world_ / on_.recipe_.parallel.pipeline_parallel_degree; }

  void find_candidates(int tensor, int stages, int most) {
    const Recipe& base = on_.recipe_;
    const int ranks = on_.world_ / stages / tensor;
    int looked_at = 0;
    std::vector<int> contexts;
    for (int c = 1; c <= ranks; ++c) {
      if (ranks % c == 0) contexts.push_back(c);
    }
    for (const auto& [context, comm] :
         with_forms(nearest_few(contexts, base.parallel.context_parallel_degree, 5), tensor, stages)) {
      for (const int hybrid : hybrids(ranks, context)) {
        const std::int64_t data_ranks = ranks / context;
        for (const std::int64_t micro : micro_batches(data_ranks)) {
          SearchSettings s = settings_of(base);
          s.tensor = tensor, s.pipeline = stages, s.context = context, s.context_comm = comm;
          s.hybrid = hybrid, s.micro_batch = micro;
          const bool accumulates = base.train.global_batch_size > data_ranks * micro && on_.world_ > 1 && hybrid != 1;
          for (const auto& [accumulation, sharding] : accumulations(accumulates, stages)) {
            s.accumulation = accumulation;
            s.sharding = sharding;
            Problems problems;
            check_layout(with(base, s), on_.world_, problems);
            check_context_form(with(base, s), on_.model_.whole(), problems);
            if (!problems.empty()) continue;
            try_checkpointing(s);
            if (++looked_at == most) return;
          }
        }
      }
    }
  }

  // How gradients are accumulated, and what is sharded. The two modes of accumulation differ only if gradients are
  // accumulated or sharded. Stages with shards either gather weights and reduce gradients in each micro-batch, or keep
  // the weights and reduce once.
  std::vector<std::pair<GradientAccumulation, ShardPolicy>> accumulations(bool accumulates, int stages) const {
    const ParallelRecipe& own = on_.recipe_.parallel;
    std::vector<std::pair<GradientAccumulation, ShardPolicy>> out{{own.gradient_accumulation, own.sharding}};
    const auto add = [&](GradientAccumulation accumulation, ShardPolicy sharding) {
      if (std::ranges::count(out, std::pair(accumulation, sharding)) == 0) out.emplace_back(accumulation, sharding);
    };
    if (!accumulates) return out;
    add(GradientAccumulation::sharded, own.sharding);
    add(GradientAccumulation::local, stages > 1 ? ShardPolicy::optimizer : own.sharding);
    return out;
  }

  // Each degree with the recipe's form, or with auto where the model does not allow it; the recipe's own degrees with
  // auto, too.
  std::vector<std::pair<int, ContextComm>> with_forms(const std::vector<int>& contexts, int tensor, int stages) const {
    const ParallelRecipe& own = on_.recipe_.parallel;
    std::vector<std::pair<int, ContextComm>> out;
    for (const int context : contexts) {
      SearchSettings s = settings_of(on_.recipe_);
      s.tensor = tensor, s.pipeline = stages, s.context = context;
      Problems problems;
      check_context_form(with(on_.recipe_, s), on_.model_.whole(), problems);
      if (problems.empty()) out.emplace_back(context, own.context_comm);
      const bool same = tensor == own.tensor_parallel_degree && context == own.context_parallel_degree;
      const bool is_auto = own.context_comm == ContextComm::automatic;
      if (!is_auto && context > 1 && (same || !problems.empty())) out.emplace_back(context, ContextComm::automatic);
    }
    return out;
  }

  // As the recipe says, but for what no key says.
  void find_other_splits() {
    if (!on_.choices_.parallelisms) return;
    for (Parallelism& parallelism : on_.choices_.parallelisms(on_.recipe_, on_.world_)) {
      SearchSettings s = settings_of(on_.recipe_);
      s.parallelism = std::make_shared<const Parallelism>(std::move(parallelism));
      try_checkpointing(s);
      try_offload(s);
    }
  }

  // With more in host memory. Only a GPU has memory of its own.
  void try_offload(const SearchSettings& own) {
    if (!on_.target_.cuda) return;
    for (const bool activations : {false, true}) {
      for (const auto& [state, weights] : {std::pair(false, false), {true, false}, {false, true}, {true, true}}) {
        SearchSettings s = own;
        if (activations) s.activations = true;
        if (state) s.state = true;
        if (weights) s.weights = true;
        const bool more = s.activations != own.activations || s.state != own.state || s.weights != own.weights;
        if (more) try_checkpointing(s);
      }
    }
  }

  // MLPs in tiles, where the tokens of a rank are several, alone and with more in host memory.
  void try_tiles(const Layout& own) {
    SearchSettings s = settings_of(on_.recipe_);
    const bool several = own.bounds.row_counts().residual >= 2 * kMlpTileRows;
    if (s.mlp_tile_rows > 0 || !several || !takes_tiles(on_.model_)) return;
    s.mlp_tile_rows = kMlpTileRows;
    try_checkpointing(s);
    try_offload(s);
  }

  // A sketch needs no balanced cuts between stages.
  Candidate sketched(const SearchSettings& s) const { return candidate_of(s, Cuts::equal); }

  Candidate candidate_of(const SearchSettings& s, Cuts cuts = Cuts::chosen) const {
    const Recipe recipe = with(on_.recipe_, s);
    return s.parallelism ? plan::candidate_of(recipe, *s.parallelism, blocks_) : on_.candidate_of(recipe, cuts);
  }

  // `ranks`: of shard x context x replicas.
  std::vector<int> hybrids(int ranks, int context) const {
    const int now = on_.recipe_.parallel.hybrid_shard_degree;
    std::vector<int> out{now};
    const auto add = [&](int degree) {
      const bool sound = degree <= 1 || (degree % context == 0 && ranks % degree == 0);
      if (sound && std::find(out.begin(), out.end(), degree) == out.end()) out.push_back(degree);
    };
    add(0);
    // Twice, four and eight times the current degree; or the size of a node.
    if (now > 0) {
      for (int k = 2; k <= 8; k *= 2) {
        if (now * k < ranks) add(now * k);
      }
    } else if (ranks > 8) {
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

  // The recipe's own checkpointing, and the mix that `auto` would choose.
  void try_checkpointing(const SearchSettings& s) {
    try {
      try_mixes(s);
    } catch (const UserError&) {
      return;  // a setting of the recipe is unsupported with this layout (run.deterministic), under any policy
    }
  }

  // The candidate with which a rank needs the least: the one that stores least, or the one before it, since backward of
  // a block may need more with the last (Checkpointing::block). If these do not fit, none does.
  template <class Estimate>
  const PolicyCandidate& least_of(std::vector<PolicyCandidate>& candidates, const Estimate& estimate) const {
    PolicyCandidate& last = candidates.back();
    estimate(last);
    if (candidates.size() == 1 || last.needed_bytes <= static_cast<double>(on_.capacity_)) return last;
    PolicyCandidate& before = candidates[candidates.size() - 2];
    estimate(before);
    return before.needed_bytes < last.needed_bytes ? before : last;
  }

  void try_mixes(SearchSettings s) {
    if (!is_automatic(on_.recipe_.memory)) add(s, on_.sketch(with(on_.recipe_, s), sketched(s)));
    s.automatic = true;
    const Recipe recipe = with(on_.recipe_, s);
    Candidate uniform = sketched(s);
    std::vector<PolicyCandidate> candidates = on_.policies_of(recipe, uniform);
    const auto estimate = [&](PolicyCandidate& candidate) {
      uniform.blocks.assign(uniform.blocks.size(), candidate.policy);
      const Sketch full = on_.sketch(recipe, uniform);
      candidate.needed_bytes = full.needed, candidate.seconds = full.seconds;
    };
    const double limit = (1 - kAutoMargin) * static_cast<double>(on_.capacity_);
    // Nothing is faster than the policy that recomputes least.
    PolicyCandidate& fastest = candidates.front();
    const PolicyCandidate& least = least_of(candidates, estimate);
    const bool fits = least.needed_bytes <= kSlack * static_cast<double>(on_.capacity_);
    if (!fits || candidates.size() == 1) return add(s, {least.needed_bytes, least.seconds});
    estimate(fastest);
    if (fastest.needed_bytes <= limit) return add(s, {fastest.needed_bytes, fastest.seconds});
    for (std::size_t c = 1; c + 1 < candidates.size(); ++c) estimate(candidates[c]);
    const PolicyCandidates policies(candidates, blocks_);
    if (const std::optional<Mix> mix = policies.fastest(limit)) {
      add(s, {mix->needed_bytes, mix->seconds});
    } else {
      const auto min = std::ranges::min_element(candidates, {}, &PolicyCandidate::needed_bytes);
      add(s, {min->needed_bytes, min->seconds});
    }
  }

  void add(const SearchSettings& s, const Sketch& sketch) {
    if (!s.parallelism && (!least_ || sketch.needed < static_cast<double>(least_->needed))) {
      Recipe recipe = with(on_.recipe_, s);
      least_ =
          Suggestion{.changes = changes_between(on_.recipe_, recipe), .recipe = std::move(recipe), .candidate = {}};
      least_->needed = static_cast<std::int64_t>(sketch.needed);
    }
    // An estimate may be off by a little; the complete plan decides.
    if (sketch.needed > kSlack * static_cast<double>(on_.capacity_)) return;
    std::vector<Change> changes = changes_between(on_.recipe_, with(on_.recipe_, s));
    if (!changes.empty() || s.parallelism) {
      tried_.push_back({s, sketch, std::move(changes)});
    }
  }

  static bool repeats(const Tried& candidate, const std::vector<Suggestion>& suggestions) {
    if (candidate.settings.parallelism) return false;  // no key names it
    return std::any_of(suggestions.begin(), suggestions.end(), [&](const Suggestion& suggestion) {
      return std::all_of(suggestion.changes.begin(), suggestion.changes.end(), [&](const Change& change) {
        return std::any_of(candidate.changes.begin(), candidate.changes.end(),
                           [&](const Change& other) { return other.key == change.key && other.value == change.value; });
      });
    });
  }

  // Equal in memory and speed to an earlier suggestion: it has no effect.
  static bool changes_nothing(const Suggestion& suggestion, const std::vector<Suggestion>& suggestions) {
    return std::any_of(suggestions.begin(), suggestions.end(), [&](const Suggestion& other) {
      return suggestion.needed == other.needed && suggestion.tokens_per_second == other.tokens_per_second;
    });
  }

  std::optional<Suggestion> plan(const Tried& tried) const {
    Recipe recipe = with(on_.recipe_, tried.settings);
    const Candidate candidate = candidate_of(tried.settings);
    if (!on_.may_fit(recipe, candidate)) return std::nullopt;
    Forecast f = is_automatic(recipe.memory) ? on_.choose(recipe, candidate) : on_.complete(recipe, candidate);
    if (!on_.surely_fits(f)) return std::nullopt;
    std::vector<Change> changes = tried.changes;
    if (tried.settings.state.value_or(false) && !on_.is_large(recipe, candidate))
      take_auto_if_faster(recipe, candidate, f, changes);
    if (on_.choices_.changes) {
      const std::vector<Change> others = on_.choices_.changes(f.candidate);
      changes.insert(changes.end(), others.begin(), others.end());
    }
    if (changes.empty()) return std::nullopt;
    return Suggestion{std::move(changes), std::move(recipe), f.candidate, f.needed(), f.tokens_per_second};
  }

  // A part of the optimizer's state in host memory may be enough.
  void take_auto_if_faster(Recipe& recipe, const Candidate& candidate, Forecast& f,
                           std::vector<Change>& changes) const {
    const std::string key = "memory.optimizer_offload";
    const auto change = std::ranges::find(changes, key, &Change::key);
    if (change == changes.end()) return;
    Recipe free = recipe;
    free.memory.optimizer_offload.reset();
    Candidate resident = candidate;
    resident.state = StatePlace::device;
    Forecast some = on_.with_offload(free, resident);
    if (!on_.surely_fits(some) || some.seconds >= f.seconds) return;
    recipe = std::move(free);
    f = std::move(some);
    change->value = "auto";
  }

  const Forecaster& on_;
  int blocks_;
  std::vector<Tried> tried_;
  std::optional<Suggestion> least_;
};

Forecaster Forecaster::with_estimates() const {
  Forecaster out = *this;
  out.estimates_ = true;
  return out;
}

bool Forecaster::surely_fits(const Forecast& f) const {
  const double most = (f.placed ? 1 : 1 - kPlaced) * static_cast<double>(capacity_);
  return f.fits() && static_cast<double>(f.needed()) <= most;
}

bool Forecaster::may_fit(const Recipe& recipe, const Candidate& candidate) const {
  Candidate least = candidate;
  if (is_automatic(recipe.memory)) least.blocks.assign(least.blocks.size(), policies_of(recipe, least).back().policy);
  std::optional<FewBlocks> few;
  if (is_large(recipe, least)) few = few_blocks(shortened(recipe, least, short_steps(recipe, least).first), least);
  const double needed = few ? few->needed(least.parallelism.partition) : sketch(recipe, least).needed;
  return needed <= kSlack * static_cast<double>(capacity_);
}

std::vector<Suggestion> Forecaster::suggestions(int count) const {
  const Forecaster estimating = with_estimates();
  return Search(estimating).run(count);
}

std::string FittingRanks::flags() const {
  std::string out = cat("--ranks ", ranks);
  for (const Change& change : changes) out += " " + change.flag();
  return out;
}

std::optional<FittingRanks> Forecaster::fitting_ranks() const {
  constexpr int kMaxGpus = 4096, kMaxProcesses = 128;
  if (target_.is_this_cpu() && !recipe_.memory.capacity) return std::nullopt;
  const int inner = recipe_.parallel.pipeline_parallel_degree * recipe_.parallel.tensor_parallel_degree;
  const Layout own = layout_of(recipe_, candidate());
  Recipe sharded = recipe_;
  sharded.parallel.hybrid_shard_degree = 0;
  sharded.memory.activation_checkpointing = Checkpointing::automatic;
  sharded.memory.per_layer.clear();
  for (int world = static_cast<int>(std::bit_ceil(static_cast<unsigned>(world_) + 1));
       world <= (target_.cuda ? kMaxGpus : kMaxProcesses); world *= 2) {
    for (const Recipe& base : {recipe_, sharded}) {
      Recipe recipe = base;
      recipe.train.global_batch_size =
          round_up(recipe.train.global_batch_size, recipe.parallel.data_ranks(world) * recipe.train.micro_batch_size);
      Problems problems;
      check_layout(recipe, world, problems);
      if (!problems.empty()) continue;
      const int shards = parallelism_of(recipe, model_, world).mesh.shard_ranks();
      if (!state_fits(model_, own, shards * inner, capacity_)) continue;
      const Machine machine = machine_of_run(machine_, target_, world_, world);
      const Forecaster on_more =
          Forecaster(recipe, model_, world, target_, machine, threads_, choices_).with_estimates();
      if (!on_more.may_fit(recipe, on_more.candidate())) continue;
      const Forecast there = on_more.forecast();
      if (!on_more.surely_fits(there)) continue;
      std::vector<Change> changes = changes_between(recipe_, recipe);
      if (recipe.train.global_batch_size != recipe_.train.global_batch_size)
        changes.push_back({"train.global_batch_size", cat(recipe.train.global_batch_size)});
      return FittingRanks{world, std::move(changes), there.needed()};
    }
  }
  return std::nullopt;
}

Alternatives Forecaster::alternatives() const {
  const Forecaster estimating = with_estimates();
  Search search(estimating);
  Alternatives out{.suggestions = search.run(kSuggestions), .ranks = fitting_ranks()};
  if (!out.suggestions.empty()) return out;
  out.least = search.least();
  out.smaller_state = with_smaller_state();
  return out;
}

}  // namespace hawser::plan
