#include "autoconfig/fit_machine.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "base/error.h"
#include "base/format_apart.h"
#include "base/text.h"
#include "base/units.h"
#include "config/config.h"

namespace hawser::autoconfig {
namespace {

constexpr double kClearlyFaster = 1.05;
constexpr int kSuggestionsExamined = 12;  // when some change user settings; each needs a plan
constexpr int kMaxRanks = 4096;
constexpr std::int64_t kLengthStep = 64;

class Fitting {
 public:
  Fitting(const Recipe& recipe, const models::Model& model, const Place& place, std::int64_t min)
      : recipe_(recipe), model_(model), place_(place), min_(std::min(min, recipe.data.sequence_length)) {}

  Fitted run() const {
    const std::int64_t wanted = recipe_.data.sequence_length;
    const bool may_shrink = !fixed("data.sequence_length") && min_ < wanted;
    for (std::int64_t length = wanted;;) {
      if (std::optional<Fitted> found = at(length)) {
        found->wanted_length = wanted;
        return std::move(*found);
      }
      // If the minimum does not fit either, lengths between are not tried.
      if (length == wanted && (!may_shrink || !at(min_))) reject(may_shrink ? min_ : wanted);
      length = std::max(min_, length / 2 / kLengthStep * kLengthStep);
    }
  }

 private:
  bool fixed(const std::string& key) const { return recipe_.places.contains(key); }

  Recipe with_length(std::int64_t length) const {
    Recipe out = recipe_;
    out.data.sequence_length = length;
    return out;
  }

  plan::Forecaster forecaster(const Recipe& recipe) const {
    return plan::Forecaster(recipe, model_, place_.world, place_.target, place_.machine, place_.threads);
  }

  // Whether suggestions may change settings of the user.
  bool set_by_user() const {
    return !place_.target.cuda || std::ranges::any_of(recipe_.places, [](const auto& place) {
      return place.first.starts_with("parallel.") || place.first.starts_with("memory.") ||
             place.first == "train.micro_batch_size";
    });
  }

  // Suggestions that leave the user's settings alone. A CPU recipe should run on any number of ranks, which a larger
  // micro-batch would prevent.
  bool allowed(const plan::Suggestion& suggestion) const {
    return std::ranges::none_of(suggestion.changes, [&](const plan::Change& change) {
      return fixed(change.key) || (!place_.target.cuda && change.key == "train.micro_batch_size");
    });
  }

  std::optional<Fitted> at(std::int64_t length) const {
    const Recipe base = with_length(length);
    const plan::Forecaster planned = forecaster(base);
    const plan::Forecast forecast = planned.forecast();
    const bool fits = double(forecast.needed()) <= margin() * double(forecast.capacity) && forecast.host_fits();
    if (fits && !place_.target.cuda) return Fitted{base, forecast};
    for (const plan::Suggestion& suggestion :
         planned.suggestions(set_by_user() ? kSuggestionsExamined : plan::kSuggestions)) {  // fastest first
      if (!allowed(suggestion)) continue;
      if (fits && suggestion.tokens_per_second < kClearlyFaster * forecast.tokens_per_second) break;
      return Fitted{suggestion.recipe, forecaster(suggestion.recipe).forecast()};
    }
    if (fits) return Fitted{base, forecast};
    if (fixed("memory.activation_checkpointing")) return std::nullopt;
    const Recipe recomputed = recomputing(base);
    const plan::Forecast least = forecaster(recomputed).forecast();
    return least.fits() ? std::optional(Fitted{recomputed, least}) : std::nullopt;
  }

  // The policies that fit or, if none do, those with the minimum memory, unless the user has set them.
  Recipe recomputing(Recipe recipe) const {
    if (fixed("memory.activation_checkpointing")) return recipe;
    recipe.memory.activation_checkpointing = Checkpointing::automatic;
    recipe.memory.per_layer.clear();
    return recipe;
  }

  // Minimum need of a rank with this length and number of ranks.
  struct MinNeed {
    std::int64_t needed = 0, capacity = 0;
    bool host_fits = true;
  };
  double margin() const { return fixed("memory.activation_checkpointing") ? 1.0 : 1 - plan::kAutoMargin; }
  bool fits(const MinNeed& need) const {
    return double(need.needed) <= margin() * double(need.capacity) && need.host_fits;
  }
  MinNeed min(std::int64_t length, int world) const {
    Recipe recipe = with_length(length);
    if (!fixed("memory.activation_checkpointing")) {
      recipe.memory.activation_checkpointing = Checkpointing::block;
      recipe.memory.per_layer.clear();
    }
    recipe.train.global_batch_size = batch(world);
    const plan::Machine machine = plan::machine_of_run(place_.machine, place_.target, place_.world, world);
    const plan::Forecaster planned(recipe, model_, world, place_.target, machine, std::max(1, machine.cores / world));
    const plan::Forecast forecast = planned.forecast();
    return {forecast.needed(), forecast.capacity, forecast.host_fits()};
  }
  // The user's, or one that divides over any number of ranks.
  std::int64_t batch(int world) const {
    return fixed("train.global_batch_size") ? recipe_.train.global_batch_size : world * recipe_.train.micro_batch_size;
  }

  // The memory per rank with which `run` accepts this length.
  Bytes enough(std::int64_t length) const {
    Recipe recipe = with_length(length);
    recipe.memory.capacity = Bytes(std::numeric_limits<std::int64_t>::max());  // so that it is planned in full
    if (!fixed("memory.activation_checkpointing") || is_automatic(recipe.memory)) {
      recipe.memory.activation_checkpointing = Checkpointing::block;
      recipe.memory.per_layer.clear();
    }
    return Bytes(static_cast<std::int64_t>(double(forecaster(recipe).forecast().needed()) / margin()) + 1);
  }

  [[noreturn]] void reject(std::int64_t length) const {
    const Recipe tried = recomputing(with_length(length));
    const plan::Forecast least = forecaster(tried).forecast();
    if (least.needed() <= least.capacity)
      throw Error(ExitCode::does_not_fit, plan::rejection(tried, least, {}));  // host
    const auto [has, needs] = format_apart(least.capacity, least.needed());
    std::string out = Problem{.file = recipe_.model.path.empty() ? recipe_.model.config : recipe_.model.path,
                              .what = cat("does not fit, even with sequences of ", length, " tokens",
                                          fixed("memory.activation_checkpointing") ? "" : " and full recompute"),
                              .expected = cat("at most ", has, " per rank on ", plural(place_.world, "rank")),
                              .got = needs}
                          .line();
    std::string more;
    // CPU ranks share the machine's memory: more ranks have no more of it, unless each has its own limit.
    const bool own_memory = place_.target.cuda || recipe_.memory.capacity;
    for (int world = place_.world * 2; own_memory && world <= kMaxRanks && more.empty(); world *= 2) {
      Problems problems;
      Recipe layout = with_length(length);
      layout.train.global_batch_size = batch(world);
      check_layout(layout, world, problems);
      if (!problems.empty()) break;
      if (const MinNeed there = min(length, world); fits(there)) {
        more = cat("--ranks ", world, " (", format_bytes(Bytes(there.needed)), " each)");
      }
    }
    const std::string memory = "--memory " + format_bytes_flag(enough(length));
    out += cat("\nit would fit with ", more.empty() ? "" : more + " or ", memory, " per rank, on a machine that has it",
               place_.target.cuda ? "" : "; --target h200 writes a recipe for H200 GPUs");
    throw Error(ExitCode::does_not_fit, out);
  }

  const Recipe& recipe_;
  const models::Model& model_;
  const Place& place_;
  std::int64_t min_;
};

}  // namespace

Fitted fit_to(const Recipe& recipe, const models::Model& model, const Place& place, std::int64_t min_length) {
  return Fitting(recipe, model, place, min_length).run();
}

}  // namespace hawser::autoconfig
