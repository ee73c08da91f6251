#include "plan/forecast.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/clock.h"
#include "base/error.h"
#include "base/for_each_index.h"
#include "base/format_apart.h"
#include "base/text.h"
#include "batches/ring_turns.h"
#include "config/config.h"
#include "plan/run_plan.h"

namespace hawser::plan {

std::string RankClass::text() const {
  return first == last ? cat("rank ", first) : cat("ranks ", first, "-", last);
}

std::vector<RankClass> rank_classes(const comm::MeshSizes& mesh) {
  // Shards have equal sizes, batches have one shape, and every rank of a stage runs the same instructions. Stages are
  // the outermost axis.
  std::vector<RankClass> classes;
  for (int stage = 0; stage < mesh.pipeline; ++stage) {
    const int first = comm::rank_of({.pipeline = stage}, mesh);
    classes.push_back({.first = first, .last = first + mesh.world() / mesh.pipeline - 1});
  }
  return classes;
}

Forecaster::Forecaster(const Recipe& recipe, const models::Model& model, int world, Target target, Machine machine,
                       int threads, CompleteChoices complete)
    : Forecaster(recipe, model, world, std::move(target), machine, threads, Choices{.complete = std::move(complete)}) {}

Forecaster::Forecaster(const Recipe& recipe, const models::Model& model, int world, Target target, Machine machine,
                       int threads, Choices choices)
    : recipe_(recipe),
      model_(model),
      models_(model),
      world_(world),
      target_(std::move(target)),
      machine_(machine),
      threads_(threads),
      evaluates_(evaluates(recipe)),
      capacity_(capacity_of(recipe, target_, machine, world)),
      choices_(std::move(choices)) {}

std::string Forecast::of_largest_stage() const {
  return stages.size() > 1 ? cat(" of pipeline stage ", largest_stage()) : "";
}

int Forecast::largest_stage() const {
  const auto largest = std::ranges::max_element(stages, {}, [&](const StageForecast& stage) { return needed(stage); });
  return static_cast<int>(largest - stages.begin());
}

std::int64_t Forecast::host_needed() const {
  std::vector<std::int64_t> pinned;
  for (const StageForecast& stage : stages) pinned.push_back(stage.costs.pinned_bytes);
  return host.needed(layout.mesh, pinned);
}

double StageForecast::computing() const {
  double seconds = 0;
  for (const auto& [what, busy] : time.busy) {
    if (what != "communication" && what != "host transfers") seconds += busy;
  }
  return seconds;
}

double Forecast::bubble() const {
  std::vector<StepTime> times;
  for (const StageForecast& stage : stages) times.push_back(stage.time);
  return bubble_of(times);
}

std::vector<Checkpointing> Forecast::checkpointing() const {
  std::vector<Checkpointing> out;
  for (const BlockPolicy& block : candidate.blocks) out.push_back(block.checkpointing);
  return out;
}

namespace {

// A step ends when all of its stages have ended it.
void set_speed(const Recipe& recipe, Forecast& forecast) {
  forecast.seconds = 0;
  for (const StageForecast& stage : forecast.stages) forecast.seconds = std::max(forecast.seconds, stage.time.seconds);
  forecast.tokens_per_second = static_cast<double>(recipe.train.global_batch_size) *
                               static_cast<double>(recipe.data.sequence_length) / forecast.seconds;
}

std::vector<const RankPlan*> pointers(const std::vector<RankPlan>& plans) {
  std::vector<const RankPlan*> out;
  for (const RankPlan& plan : plans) out.push_back(&plan);
  return out;
}

}  // namespace

Candidate Forecaster::candidate_of(const Recipe& recipe, Cuts cuts) const {
  const auto own = [&] {
    const Recipe of_form = with_context_form(recipe);
    return parallelism_of(cuts == Cuts::chosen ? with_partition(of_form) : of_form, model_, world_);
  };
  Parallelism parallelism = choices_.parallelism ? choices_.parallelism(recipe, world_) : own();
  return plan::candidate_of(recipe, std::move(parallelism), model_.blocks());
}

Layout Forecaster::layout_of(const Recipe& recipe, const Candidate& candidate) const {
  return layout_of(recipe, candidate, *models_.of(candidate.parallelism, 0, model_.blocks()));
}

Layout Forecaster::layout_of(const Recipe& recipe, const Candidate& candidate, const models::Model& model) const {
  const DeviceKind device = target_.cuda ? DeviceKind::cuda : DeviceKind::cpu;
  check_loss(recipe, model, device);
  LayoutChoices choices =
      layout_choices(recipe, model, candidate.parallelism, compute_dtype(recipe.precision, target_), threads_, device);
  apply(candidate, model, choices);
  if (choices_.complete) choices_.complete(choices, model);
  return derive(std::move(choices), model);
}

double Forecaster::rate_scale() const {
  return target_.per_core ? std::min<double>(threads_, double{1} * machine_.cores / world_) : 1.0;
}

Recipe Forecaster::shortened(const Recipe& recipe, const Candidate& candidate, int micro_batches) const {
  const Layout layout = layout_of(recipe, candidate);
  Recipe out = recipe;
  out.train.global_batch_size = std::min<std::int64_t>(
      recipe.train.global_batch_size, std::int64_t{1} * micro_batches * layout.data_ranks() * layout.batch.sequences);
  return out;
}

int Forecaster::period(const Recipe& recipe, const Candidate& candidate) const {
  const int stages = Forecaster::stages(candidate);
  const int micro_batches = layout_of(recipe, candidate).micro_batches;
  if (micro_batches <= 2 * stages) return stages;
  const auto in_flight = [&](int of) { return candidate.parallelism.schedule.in_flight(stages, of); };
  const int most = in_flight(2 * stages);
  return in_flight(4 * stages) > most ? micro_batches : static_cast<int>(round_up(most, stages));
}

Forecast Forecaster::forecast() const {
  const ParallelRecipe& parallel = recipe_.parallel;
  if (parallel.context_comm == ContextComm::automatic && parallel.context_parallel_degree > 1) return fastest_form();
  return fitted(recipe_, with_offload(recipe_, candidate()));
}

Forecast Forecaster::forecast(const Candidate& candidate) const {
  return planned(recipe_, candidate);
}

Forecast Forecaster::planned(const Recipe& recipe, const Candidate& candidate) const {
  const int searched = searched_micro_batches(recipe, candidate);
  if (!extrapolates(recipe, candidate) && layout_of(recipe, candidate).micro_batches > searched) {
    const Recipe first = shortened(recipe, candidate, searched);
    if (!forecast(first, candidate, program::Placing::estimate).fits()) {
      return extrapolated(recipe, candidate, program::Placing::offsets);
    }
  }
  return complete(recipe, candidate);
}

bool Forecaster::extrapolates(const Recipe& recipe, const Candidate& candidate) const {
  constexpr int kManyPasses = 1024;  // of blocks
  const int micro_batches = layout_of(recipe, candidate).micro_batches;
  return micro_batches >= 4 * period(recipe, candidate) && micro_batches * model_.blocks() > kManyPasses;
}

bool Forecaster::is_large(const Recipe& recipe, const Candidate& candidate) const {
  constexpr int kLargePlan = 768;  // passes of blocks
  return stages(candidate) > 1 && model_.blocks() * searched_micro_batches(recipe, candidate) > kLargePlan;
}

Forecast Forecaster::complete(const Recipe& recipe, const Candidate& candidate) const {
  const program::Placing placing =
      estimates_ && is_large(recipe, candidate) ? program::Placing::estimate : program::Placing::offsets;
  return extrapolates(recipe, candidate) ? extrapolated(recipe, candidate, placing)
                                         : forecast(recipe, candidate, placing);
}

Forecaster::ShortSteps Forecaster::short_steps(const Recipe& recipe, const Candidate& candidate) const {
  const Parallelism& own = candidate.parallelism;
  const int period = Forecaster::period(recipe, candidate);
  const bool even = own.partition.stages > 1 && own.partition.model_chunks() == own.partition.stages &&
                    !own.schedule.delays_weights && own.schedule.group == 1;
  if (even) return {.first = period + 2, .more = std::max(2, period / 2)};
  return {.first = 2 * period + layout_of(recipe, candidate).micro_batches % period, .more = period};
}

Forecast Forecaster::extrapolated(const Recipe& recipe, const Candidate& candidate, program::Placing placing) const {
  const auto start = std::chrono::steady_clock::now();
  const ShortSteps steps = short_steps(recipe, candidate);
  Layout all = layout_of(recipe, candidate);
  if (all.micro_batches < steps.first + steps.more) return forecast(recipe, candidate, placing);
  Forecast out = forecast(shortened(recipe, candidate, steps.first), candidate, placing);
  const Forecast longer =
      forecast(shortened(recipe, candidate, steps.first + steps.more), candidate, program::Placing::estimate);
  const double more = static_cast<double>(all.micro_batches - out.layout.micro_batches) / steps.more;
  out.layout = std::move(all);
  const auto add = [&](double& value, double longers) { value += more * (longers - value); };
  const auto at = [](const std::map<std::string, double>& in, const std::string& key) {
    const auto found = in.find(key);
    return found == in.end() ? 0.0 : found->second;
  };
  for (std::size_t s = 0; s < out.stages.size(); ++s) {
    StageForecast& stage = out.stages[s];
    const StageForecast& other = longer.stages[s];
    add(stage.costs.flops, other.costs.flops);
    add(stage.costs.model_flops, other.costs.model_flops);
    add(stage.time.seconds, other.time.seconds);
    add(stage.time.alone, other.time.alone);
    const std::int64_t pinned = other.costs.pinned_bytes - stage.costs.pinned_bytes;
    stage.costs.pinned_bytes += std::llround(more * static_cast<double>(pinned));
    for (auto& [group, bytes] : stage.costs.traffic) add(bytes, at(other.costs.traffic, group));
    for (auto& [what, seconds] : stage.time.busy) add(seconds, at(other.time.busy, what));
  }
  set_speed(recipe, out);
  out.planning_seconds = seconds_since(start);
  return out;
}

namespace {

struct OtherStep {
  step::Purpose purpose = step::Purpose::train;
  Layout layout;
};

// Those of a training run that are not like most, as engine::Session has them.
std::vector<OtherStep> other_steps(const Layout& layout, bool evaluates) {
  constexpr step::Purpose kTrain = step::Purpose::train, kLoss = step::Purpose::loss;
  std::vector<OtherStep> others;
  if (evaluates) others.push_back({kLoss, layout});
  if (needs_calibration(layout)) others.push_back({kTrain, calibrating(layout)});
  if (layout.may_refuse()) {
    others.push_back({kTrain, of_refused_steps(layout)});
    if (evaluates) others.push_back({kLoss, of_refused_steps(layout)});
  }
  if (layout.verify_every) {
    for (const step::Verification verification : {step::Verification::reference, step::Verification::comparison}) {
      others.push_back({kTrain, verified(layout, verification)});
    }
  }
  return others;
}

// A ring waits in each turn for the rank with the most work. A zig-zag is balanced in each turn. Where chunks are dealt
// by work, sequences are assumed to have kDocuments documents of lengths like 1, 2, 3, ..., whose attention is a part
// of that of one document, as the time of attention is.
void add_waits(const Layout& layout, StepTime& time) {
  constexpr int kDocuments = 8;
  const auto attention = time.busy.find("attention");
  const batches::BatchShape& batch = layout.batch;
  const bool by_work = batch.split == batches::SequenceSplit::by_work;
  if (!layout.ring_attention || !by_work || attention == time.busy.end()) return;
  const auto count = static_cast<int>(std::min<std::int64_t>(kDocuments, batch.max_documents));
  std::vector<std::int32_t> lengths;
  double pairs = 0;
  for (int i = 1; i <= count; ++i) {
    lengths.push_back(static_cast<std::int32_t>(2 * i * batch.sequence_length / (count * (count + 1))));
    pairs += std::pow(static_cast<double>(lengths.back()) / static_cast<double>(batch.sequence_length), 2);
  }
  const double waits = (batches::imbalance_of_turns(batch, lengths) - 1) * pairs * attention->second;
  if (waits < 1e-3 * time.seconds) return;
  time.busy["waits in the ring"] = waits;
  time.seconds += waits;
  time.alone += waits;
}

// The memory of the step that needs more: they share one arena. Each has buffers of its own that the host stages its
// inputs in: `staged` are those of `costs`, and become those of both.
void take_larger(const Costs& other, std::int64_t others_staged, Costs& costs, std::int64_t& staged) {
  costs.pinned_bytes = std::max(costs.pinned_bytes - staged, other.pinned_bytes - others_staged);
  staged += others_staged;
  costs.pinned_bytes += staged;
  if (other.total_bytes <= costs.total_bytes) return;
  costs.total_bytes = other.total_bytes;
  costs.peak_bytes = other.peak_bytes;
  costs.peak_bytes_by_category = other.peak_bytes_by_category;
  costs.peak_instruction = other.peak_instruction;
}

}  // namespace

Forecast Forecaster::forecast(const Recipe& recipe, const Candidate& candidate, int blocks, program::Placing placing,
                              std::int64_t max_needed) const {
  const auto start = std::chrono::steady_clock::now();
  Forecast out{.candidate = candidate,
               .layout = layout_of(recipe, candidate, *models_.of(candidate.parallelism, 0, blocks)),
               .stages = {},
               .capacity = capacity_,
               .host = host_memory_of(recipe.memory, target_, machine_, world_),
               .placed = true};
  const std::vector<RankClass> classes = rank_classes(out.layout.mesh);
  std::vector<int> ranks;
  std::vector<std::shared_ptr<const models::Model>> models;
  for (const RankClass& of_stage : classes) {
    ranks.push_back(of_stage.first);
    models.push_back(models_.of(candidate.parallelism, of_stage.first, blocks));
  }
  std::vector<RankPlan> plans(classes.size());
  std::vector<char> placed(classes.size());
  out.stages.resize(classes.size());
  for_each_index(classes.size(), [&](std::size_t s) {
    const models::Model& model = *models[s];
    StageForecast& stage = out.stages[s];
    stage.overhead = overhead_of(target_, out.layout.mesh, static_cast<int>(s));
    const std::int64_t most = max_needed - stage.overhead;
    plans[s] = plan_rank(model, out.layout, step::Purpose::train, ranks[s], false, placing, most);
    placed[s] = plans[s].buffers.placement.placed;
    stage.costs = costs_of(plans[s], model, out.layout, &target_);
    std::int64_t staged = plans[s].staging_bytes;
    for (const auto& [purpose, layout] : other_steps(out.layout, evaluates_)) {
      const RankPlan plan = plan_rank(model, layout, purpose, ranks[s], true, placing, most);
      placed[s] = placed[s] && plan.buffers.placement.placed;
      take_larger(costs_of(plan, model, layout), plan.staging_bytes, stage.costs, staged);
    }
  });
  out.placed = std::ranges::all_of(placed, std::identity());
  if (plans.size() > 1 && out.placed) check_plans(pointers(plans), ranks);
  std::vector<StepTime> times = step_times(traces_of(plans, out.layout), target_, out.layout.compute, rate_scale());
  for (std::size_t s = 0; s < plans.size(); ++s) {
    out.stages[s].time = std::move(times[s]);
    add_waits(out.layout, out.stages[s].time);
  }
  set_speed(recipe, out);
  out.planning_seconds = seconds_since(start);
  return out;
}

namespace {

// `where`: the stage that needs this much, or empty.
std::string does_not_fit(const Recipe& recipe, std::int64_t capacity, std::int64_t needed, const std::string& where,
                         const std::string& hint) {
  const bool given = recipe.memory.capacity.has_value();
  const auto [has, needs] = format_apart(capacity, needed);
  return Problem{.file = recipe.file,
                 .what = "does not fit",
                 .expected = cat("at most ", has, " per rank", given ? "" : ", the device's memory"),
                 .got = needs + where,
                 .at = given ? key_place(recipe, "memory.capacity") : "",
                 .hint = hint}
      .line();
}

// What pins less.
std::string less_pinned(const Recipe& recipe, const HostMemory& host) {
  std::vector<std::string> out;
  if (host.ranks > 1) out.emplace_back("fewer ranks on each machine");
  if (recipe.memory.optimizer_offload.value_or(false)) {
    out.emplace_back("memory.optimizer_offload: auto, which pins only what does not fit on the device");
  }
  return joined(out, ", or ");
}

std::string host_does_not_fit(const Recipe& recipe, const HostMemory& host, std::int64_t needed,
                              const std::string& hint) {
  const auto [has, needs] = format_apart(host.capacity, needed);
  return Problem{.file = recipe.file,
                 .what = "does not fit in host memory",
                 .expected = cat("at most ", has, " for the ", plural(host.ranks, "rank"), " of a machine"),
                 .got = needs,
                 .at = recipe.memory.host_capacity ? key_place(recipe, "memory.host_capacity") : "",
                 .hint = hint}
      .line();
}

}  // namespace

std::string rejection(const Recipe& recipe, const Forecast& forecast) {
  return forecast.needed() > forecast.capacity
             ? does_not_fit(recipe, forecast.capacity, forecast.needed(), forecast.of_largest_stage(), "")
             : host_does_not_fit(recipe, forecast.host, forecast.host_needed(), less_pinned(recipe, forecast.host));
}

namespace {

std::string least_text(const std::optional<Suggestion>& least) {
  if (!least) return "";
  const std::string bytes = format_bytes(Bytes(least->needed));
  if (least->changes.empty()) return cat("\nweights and optimizer state alone need ", bytes, " per rank");
  return cat("\nthe least that was found is about ", bytes, " per rank, with ", least->flags());
}

std::string smaller_state_text(const std::optional<Suggestion>& state) {
  if (!state) return "";
  return cat("\nwith less state of the optimizer it fits: ", state->flags(), "   (", format_bytes(Bytes(state->needed)),
             " per rank)");
}

}  // namespace

std::string rejection(const Recipe& recipe, const Forecast& forecast, const Alternatives& alternatives) {
  const std::vector<Suggestion>& suggestions = alternatives.suggestions;
  std::string out = rejection(recipe, forecast);
  std::string ranks;
  if (const auto& more = alternatives.ranks) {
    ranks = cat("\nit fits from ", more->flags(), " (", format_bytes(Bytes(more->needed)), " per rank)");
  }
  if (suggestions.empty()) {
    const char* const or_else =
        forecast.layout.device == DeviceKind::cuda
            ? "; try shorter sequences or more memory per rank"
            : "; try shorter sequences, more memory per rank, or GPUs (hawser plan --target h200)";
    return out + cat("\nno settings were found that fit ", plural(forecast.layout.mesh.world(), "rank"),
                     " and keep sequence length and global batch", alternatives.ranks ? "" : or_else,
                     forecast.needed() > forecast.capacity ? least_text(alternatives.least) : "",
                     smaller_state_text(alternatives.smaller_state), ranks);
  }
  out += cat("\n", suggestions.size() < kSuggestions ? "only " : "",
             plural(static_cast<std::int64_t>(suggestions.size()), "way"),
             " to fit with the same sequence length and global batch, ",
             suggestions.size() == 1 ? "with" : "fastest first, with", " the tokens/s predicted for all ranks:");
  for (const Suggestion& suggestion : suggestions) {
    out += cat("\n  ", suggestion.flags(), "   (", format_bytes(Bytes(suggestion.needed)), ", ",
               format_count(suggestion.tokens_per_second), " tokens/s)");
  }
  return out + ranks;
}

void check_capacity(const Recipe& recipe, const models::Model& model, int world, int threads, const Machine& machine,
                    const std::string& target) {
  const Forecaster forecaster(recipe, model, world, load_target(target), machine, threads);
  const Forecast forecast = forecaster.forecast();
  if (!forecast.fits()) throw Error(ExitCode::does_not_fit, rejection(recipe, forecast, forecaster.alternatives()));
}

void check_capacity(const Recipe& recipe, const models::Model& model, const Layout& layout, step::Purpose purpose,
                    const std::string& hint, const Machine& machine, const std::string& target) {
  std::int64_t needed = 0;
  std::vector<std::int64_t> pinned;
  const Target on = load_target(target);
  for (const RankClass& of_stage : rank_classes(layout.mesh)) {
    const RankPlan plan = plan_rank(model, layout, purpose, of_stage.first);
    pinned.push_back(plan.pinned_bytes());
    needed = std::max(needed, plan.bytes() + (layout.device == DeviceKind::cpu ? plan.pinned_bytes() : 0) +
                                  overhead_of(on, layout.mesh, plan.stage));
  }
  check_capacity(recipe, needed, layout.mesh.world(), hint, machine, target);
  const HostMemory host = host_memory_of(recipe.memory, on, machine, layout.mesh.world());
  const std::int64_t of_host = host.needed(layout.mesh, pinned);
  if (host.capacity == 0 || of_host <= host.capacity) return;
  throw Error(ExitCode::does_not_fit, host_does_not_fit(recipe, host, of_host, hint));
}

void check_capacity(const Recipe& recipe, std::int64_t needed, int world, const std::string& hint,
                    const Machine& machine, const std::string& target) {
  const std::int64_t capacity = capacity_of(recipe, load_target(target), machine, world);
  if (needed <= capacity) return;
  throw Error(ExitCode::does_not_fit, does_not_fit(recipe, capacity, needed, "", hint));
}

}  // namespace hawser::plan
