// Choice of the form of context parallelism for parallel.context_comm: auto, and the estimates that it compares.
#include <algorithm>
#include <array>
#include <cstdio>

#include "base/text.h"
#include "base/units.h"
#include "config/config.h"
#include "plan/forecast.h"

namespace hawser::plan {

Forecaster::Sketch Forecaster::sketch(const Recipe& recipe, const Candidate& candidate) const {
  constexpr int kFew = 2;
  const int micro_batches = layout_of(recipe, candidate).micro_batches, period = Forecaster::period(recipe, candidate);
  const Recipe one = shortened(recipe, candidate, period), two = shortened(recipe, candidate, 2 * period);
  const auto at = [&](int blocks) {
    const Forecast f = forecast(two, candidate, blocks, program::Placing::estimate);
    Sketch out{static_cast<double>(f.needed()), f.seconds};
    if (micro_batches <= 2 * period) return out;
    const double first = forecast(one, candidate, blocks, program::Placing::estimate).seconds;
    out.seconds += static_cast<double>(micro_batches - 2 * period) / period * (out.seconds - first);
    return out;
  };
  const bool alike = std::ranges::adjacent_find(candidate.blocks, std::not_equal_to()) == candidate.blocks.end();
  const int blocks = model_.blocks();
  if (blocks <= 2 * kFew || stages(candidate) > 1 || !alike) return at(blocks);
  const Sketch a = at(kFew), b = at(2 * kFew);
  const double more = static_cast<double>(blocks - 2 * kFew) / kFew;
  return {b.needed + more * (b.needed - a.needed), b.seconds + more * (b.seconds - a.seconds)};
}

std::vector<ContextForecast> Forecaster::context_forms(const Recipe& recipe) const {
  std::vector<ContextForecast> out;
  const double capacity = static_cast<double>(capacity_);
  for (const ContextForm& form : plan::context_forms(recipe.parallel, model_.whole())) {
    Recipe of_form = recipe;
    set_context_form(of_form.parallel, form);
    Sketch found = sketch(of_form, candidate_of(of_form));
    if (is_automatic(recipe.memory) && found.needed > capacity) {
      of_form.memory.activation_checkpointing = Checkpointing::full;
      found = sketch(of_form, candidate_of(of_form));
    }
    out.push_back({form, found.seconds, static_cast<std::int64_t>(found.needed)});
  }
  std::ranges::stable_sort(out, [&](const ContextForecast& a, const ContextForecast& b) {
    const bool a_fits = a.needed <= capacity_, b_fits = b.needed <= capacity_;
    return a_fits != b_fits ? a_fits : a.seconds < b.seconds;
  });
  return out;
}

std::string context_choice_text(const std::vector<ContextForecast>& forms) {
  const ContextForecast& chosen = forms.front();
  std::string others;
  for (std::size_t i = 1; i < forms.size(); ++i) {
    const double longer = forms[i].seconds / chosen.seconds - 1;
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "+%.1f%%", 100 * longer);
    others += cat(i > 1 ? ", " : "", context_text(forms[i].form), " ", longer < 0 ? "does not fit" : text.data());
  }
  return cat(context_text(chosen.form), "; predicted step times of others: ", others);
}

Recipe Forecaster::with_context_form(const Recipe& recipe) const {
  if (recipe.parallel.context_comm != ContextComm::automatic) return recipe;
  const std::pair<int, int> degrees{recipe.parallel.tensor_parallel_degree, recipe.parallel.context_parallel_degree};
  Recipe out = recipe;
  auto found = context_choices_.find(degrees);
  if (found == context_choices_.end()) {
    found = context_choices_.emplace(degrees, context_forms(recipe).front().form).first;
  }
  set_context_form(out.parallel, found->second);
  return out;
}

}  // namespace hawser::plan
