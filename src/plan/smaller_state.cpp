// A smaller state of the optimizer, for a recipe that nothing else makes fit.
#include "plan/forecast.h"
#include "plan/make_optimizer.h"

namespace hawser::plan {

namespace {

// What is tried, from the least change of the training on.
struct State {
  bool average = true;  // optimizer.ema stays
  enum class Moments { as_they_are, bf16, eight_bits } moments = Moments::as_they_are;
};
constexpr State kStates[] = {{.moments = State::Moments::bf16},
                             {.average = false},
                             {.average = false, .moments = State::Moments::bf16},
                             {.moments = State::Moments::eight_bits},
                             {.average = false, .moments = State::Moments::eight_bits}};

// The recipe with a state; nullopt if that is no change, or the optimizer does not have it.
std::optional<Recipe> with(const Recipe& recipe, const State& state) {
  Recipe out = recipe;
  if (!state.average) {
    if (recipe.optimizer.ema == 0) return std::nullopt;
    out.optimizer.ema = 0;
  }
  if (state.moments == State::Moments::bf16) {
    if (recipe.optimizer.state_dtype == StateDType::bf16 || !has_state_dtype(recipe.optimizer)) return std::nullopt;
    out.optimizer.state_dtype = StateDType::bf16;
  } else if (state.moments == State::Moments::eight_bits) {
    if (recipe.optimizer.kind != OptimizerKind::adamw) return std::nullopt;
    out.optimizer.kind = OptimizerKind::adamw_8bit;
    out.optimizer.state_dtype = StateDType::f32;  // a key of adamw
  }
  return out;
}

std::vector<Change> changes_to(const OptimizerRecipe& own, const OptimizerRecipe& other) {
  std::vector<Change> out;
  if (own.kind != other.kind) out.push_back({"optimizer.kind", kind_name(other.kind)});
  if (own.state_dtype != other.state_dtype) out.push_back({"optimizer.state_dtype", dtype_name(other.state_dtype)});
  if (own.ema != other.ema) out.push_back({"optimizer.ema", "0"});
  return out;
}

}  // namespace

std::optional<Suggestion> Forecaster::with_smaller_state() const {
  for (const State& state : kStates) {
    std::optional<Recipe> recipe = with(recipe_, state);
    if (!recipe) continue;
    const bool other_specs = recipe->optimizer.kind != recipe_.optimizer.kind;
    const std::shared_ptr<const models::Model> changed =
        other_specs
            ? model_.with_specs([&](nn::FlatSpecOf of) { return with_optimizer(std::move(of), recipe->optimizer); })
            : nullptr;
    const models::Model& model = other_specs ? *changed : model_;
    try {
      const Forecaster on = Forecaster(*recipe, model, world_, target_, machine_, threads_, choices_).with_estimates();
      if (!on.may_fit(*recipe, on.candidate())) continue;
      const Forecast f = on.forecast();
      if (!on.surely_fits(f)) continue;
      std::vector<Change> changes = changes_to(recipe_.optimizer, recipe->optimizer);
      return Suggestion{std::move(changes), std::move(*recipe), f.candidate, f.needed(), f.tokens_per_second};
    } catch (const UserError&) {
      // Slices of tensor ranks may cut blocks of a state.
    }
  }
  return std::nullopt;
}

}  // namespace hawser::plan
