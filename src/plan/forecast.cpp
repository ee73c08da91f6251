#include "plan/forecast.h"

#include <algorithm>
#include <chrono>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "config/config.h"

namespace hawser::plan {

std::string RankClass::text() const {
  return first == last ? cat("rank ", first) : cat("ranks ", first, "-", last);
}

std::vector<RankClass> rank_classes(const comm::MeshSizes& mesh) {
  // Shards have equal sizes, batches have one shape, and every rank runs the same instructions: without pipeline stages
  // all ranks need the same memory.
  HAWSER_CHECK(mesh.pipeline == 1, "classes of ranks with pipeline stages");
  return {{.first = 0, .last = mesh.world() - 1}};
}

Forecaster::Forecaster(const Recipe& recipe, const models::Model& model, int world, Target target, Machine machine,
                       int threads)
    : recipe_(recipe),
      model_(model),
      world_(world),
      target_(std::move(target)),
      machine_(machine),
      threads_(threads),
      capacity_(capacity_of(recipe, target_, machine, world)) {}

std::vector<Checkpointing> Forecast::checkpointing() const {
  std::vector<Checkpointing> out;
  for (std::size_t layer = 0; layer < layout.policies.size(); layer += 2) {
    out.push_back(layout.policies[layer].checkpointing);
  }
  return out;
}

Layout Forecaster::layout_of(const Recipe& recipe) const {
  return make_layout(recipe, model_, world_, compute_dtype(recipe.precision, target_), threads_,
                     target_.cuda ? DeviceKind::cuda : DeviceKind::cpu);
}

Recipe Forecaster::shortened(const Recipe& recipe, int micro_batches) const {
  const Layout layout = layout_of(recipe);
  Recipe out = recipe;
  out.train.global_batch_size = std::min<std::int64_t>(
      recipe.train.global_batch_size, std::int64_t{1} * micro_batches * layout.data_ranks() * layout.batch.sequences);
  return out;
}

Forecast Forecaster::forecast() const {
  if (is_automatic(recipe_.memory)) return choose(recipe_);
  if (layout_of(recipe_).micro_batches > kSearchedMicroBatches) {
    const Recipe two = shortened(recipe_, kSearchedMicroBatches);
    if (!forecast(two, model_, program::Placing::estimate).fits()) return extrapolated(recipe_);
  }
  return forecast(recipe_, model_, program::Placing::offsets);
}

Forecast Forecaster::extrapolated(const Recipe& recipe) const {
  const auto start = std::chrono::steady_clock::now();
  const Forecast one = forecast(shortened(recipe, 1), model_, program::Placing::estimate);
  Forecast out = forecast(shortened(recipe, 2), model_, program::Placing::offsets);
  out.layout = layout_of(recipe);
  const double more = out.layout.micro_batches - 2;
  const auto add = [&](double& two, double first) { two += more * (two - first); };
  add(out.costs.flops, one.costs.flops);
  add(out.costs.model_flops, one.costs.model_flops);
  add(out.time.seconds, one.time.seconds);
  const auto at = [](const std::map<std::string, double>& in, const std::string& key) {
    const auto found = in.find(key);
    return found == in.end() ? 0.0 : found->second;
  };
  for (auto& [group, bytes] : out.costs.traffic) add(bytes, at(one.costs.traffic, group));
  for (auto& [what, seconds] : out.time.busy) add(seconds, at(one.time.busy, what));
  out.tokens_per_second = static_cast<double>(recipe.train.global_batch_size) *
                          static_cast<double>(recipe.data.sequence_length) / out.time.seconds;
  out.planning_seconds = seconds_since(start);
  return out;
}

Forecast Forecaster::forecast(const Recipe& recipe, const models::Model& model, program::Placing placing,
                              std::int64_t max_needed) const {
  const auto start = std::chrono::steady_clock::now();
  Forecast out;
  const DType compute = compute_dtype(recipe.precision, target_);
  out.layout = make_layout(recipe, model, world_, compute, threads_, target_.cuda ? DeviceKind::cuda : DeviceKind::cpu);
  out.overhead = overhead_of(target_, out.layout.mesh);
  const RankPlan plan =
      plan_rank(model, out.layout, step::Purpose::train, 0, false, placing, max_needed - out.overhead);
  out.costs = costs_of(plan, model, out.layout);
  out.placed = plan.buffers.placement.placed;
  out.capacity = capacity_;
  const double rate_scale = target_.per_core ? std::min<double>(threads_, double{1} * machine_.cores / world_) : 1.0;
  out.time = step_time(plan.trace, target_, compute, rate_scale);
  out.tokens_per_second = static_cast<double>(recipe.train.global_batch_size) *
                          static_cast<double>(recipe.data.sequence_length) / out.time.seconds;
  out.planning_seconds = seconds_since(start);
  return out;
}

namespace {

std::string does_not_fit(const Recipe& recipe, std::int64_t capacity, std::int64_t needed, const std::string& hint) {
  const bool given = recipe.memory.capacity.has_value();
  return Problem{
      .file = recipe.file,
      .what = "does not fit",
      .expected = cat("at most ", format_bytes(Bytes(capacity)), " per rank", given ? "" : ", the device's memory"),
      .got = format_bytes(Bytes(needed)),
      .at = given ? key_place(recipe, "memory.capacity") : "",
      .hint = hint}
      .line();
}

}  // namespace

std::string rejection(const Recipe& recipe, const Forecast& forecast, const Alternatives& alternatives) {
  const std::vector<Suggestion>& suggestions = alternatives.suggestions;
  std::string out = does_not_fit(recipe, forecast.capacity, forecast.needed(), "");
  std::string ranks;
  if (const auto& more = alternatives.ranks) {
    ranks = cat("\nit fits from ", more->flags(), " (", format_bytes(Bytes(more->needed)), " per rank)");
  }
  if (suggestions.empty()) {
    return out + cat("\nno settings were found that fit ", plural(forecast.layout.mesh.world(), "rank"),
                     " and keep sequence length and global batch",
                     !ranks.empty() ? ranks
                     : forecast.layout.device == DeviceKind::cuda
                         ? "; try shorter sequences or more memory per rank"
                         : "; try shorter sequences, more memory per rank, or GPUs (hawser plan --target h200)");
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
  const RankPlan plan = plan_rank(model, layout, purpose, 0);
  const std::int64_t needed = plan.bytes() + (layout.device == DeviceKind::cpu ? plan.pinned_bytes() : 0) +
                              overhead_of(load_target(target), layout.mesh);
  check_capacity(recipe, needed, layout.mesh.world(), hint, machine, target);
}

void check_capacity(const Recipe& recipe, std::int64_t needed, int world, const std::string& hint,
                    const Machine& machine, const std::string& target) {
  const std::int64_t capacity = capacity_of(recipe, load_target(target), machine, world);
  if (needed <= capacity) return;
  throw Error(ExitCode::does_not_fit, does_not_fit(recipe, capacity, needed, hint));
}

}  // namespace hawser::plan
