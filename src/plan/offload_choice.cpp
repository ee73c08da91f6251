// What is in host memory where the recipe leaves it open: memory.optimizer_offload: auto chooses flats,
// memory.activation_offload: auto blocks (choose.cpp).
#include <algorithm>

#include "plan/forecast.h"

namespace hawser::plan {

namespace {

// Without recompute and offload: no other place of the state can make the step faster.
bool keeps_all(const Candidate& candidate) {
  return std::ranges::all_of(candidate.blocks, [](const BlockPolicy& block) {
    return block.checkpointing == Checkpointing::none && !block.offload;
  });
}

}  // namespace

std::optional<bool> Forecaster::offload_of(const Recipe& recipe) const {
  const std::optional<bool>& offload = recipe.memory.activation_offload;
  return target_.cuda ? offload : offload.value_or(false);
}

Forecast Forecaster::with_policies(const Recipe& recipe, const Candidate& candidate) const {
  return is_automatic(recipe.memory) ? choose(recipe, candidate) : planned(recipe, candidate);
}

Forecast Forecaster::with_offload(const Recipe& recipe, const Candidate& candidate) const {
  Forecast resident = with_policies(recipe, candidate);
  // Host and device of a CPU have one memory.
  const bool is_free = is_offload_automatic(recipe.memory) && target_.cuda;
  if (!is_free || (resident.fits() && (!is_automatic(recipe.memory) || keeps_all(resident.candidate)))) return resident;
  Candidate all = candidate;
  all.state = StatePlace::host;
  all.state_flats = trainable_flats(model_, candidate.parallelism.partition);
  Forecast out = with_policies(recipe, all);
  // With fewer flats in host memory that may be large enough.
  if (out.needed() > out.capacity) return resident.fits() || resident.needed() <= out.needed() ? resident : out;
  const Recipe few = shortened(recipe, candidate, searched_micro_batches(recipe, candidate));
  const auto with_flats = [&](int flats) {
    Candidate some = out.candidate;
    some.state_flats = flats;
    return some;
  };
  int too_few = 0, enough = *all.state_flats;
  while (enough - too_few > 1) {
    const int flats = (too_few + enough) / 2;
    const Forecast some = forecast(few, with_flats(flats), program::Placing::estimate);
    const bool fits = static_cast<double>(some.needed()) <= (1 - kPlaced) * static_cast<double>(capacity_);
    (fits ? enough : too_few) = flats;
  }
  Forecast some = complete(recipe, with_flats(enough));
  some.chosen = out.chosen;
  if (some.needed() <= some.capacity) out = std::move(some);
  return resident.fits() && (!out.fits() || resident.seconds <= out.seconds) ? resident : out;
}

}  // namespace hawser::plan
