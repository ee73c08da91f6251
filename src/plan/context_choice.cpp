// Choice of the form of context parallelism for parallel.context_comm: auto.
#include <algorithm>
#include <exception>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "config/config.h"
#include "plan/forecast.h"

namespace hawser::plan {

std::vector<ContextForecast> Forecaster::context_forms(const Recipe& recipe) const {
  std::vector<ContextForecast> out;
  std::exception_ptr unsupported;  // run.deterministic with a form whose attention is not
  for (const ContextForm& form : plan::context_forms(recipe.parallel, model_.whole())) {
    Recipe of_form = recipe;
    set_context_form(of_form.parallel, form);
    const auto fits = [&](const Sketch& found) { return found.needed <= static_cast<double>(capacity_); };
    try {
      Sketch found = sketch(of_form, candidate_of(of_form));
      if (is_automatic(recipe.memory) && !fits(found)) {
        of_form.memory.activation_checkpointing = Checkpointing::block;
        found = sketch(of_form, candidate_of(of_form));
      }
      out.push_back({form, found.seconds, static_cast<std::int64_t>(found.needed), fits(found)});
    } catch (const UserError&) {
      unsupported = std::current_exception();
    }
  }
  if (out.empty()) std::rethrow_exception(unsupported);
  std::ranges::stable_sort(out, {}, &ContextForecast::seconds);
  return out;
}

Forecast Forecaster::fastest_form() const {
  std::vector<ContextForecast> forms = context_forms(recipe_);
  std::optional<Forecast> out;
  for (std::size_t i = 0; i < forms.size(); ++i) {
    Recipe of_form = recipe_;
    set_context_form(of_form.parallel, forms[i].form);
    const Candidate candidate = candidate_of(of_form);
    Forecast found = fitted(of_form, with_offload(of_form, candidate));
    const bool fits = found.fits();
    if (out && !fits && found.needed() >= out->needed()) continue;
    out = std::move(found);
    out->context_forms = forms;
    std::rotate(out->context_forms.begin(), out->context_forms.begin() + static_cast<std::ptrdiff_t>(i),
                out->context_forms.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    if (fits) break;
  }
  return std::move(*out);
}

std::string context_choice_text(const std::vector<ContextForecast>& forms) {
  std::string others;
  for (std::size_t i = 1; i < forms.size(); ++i) {
    others += cat(i > 1 ? ", " : "", context_text(forms[i].form), " ",
                  signed_percent(forms[i].seconds / forms.front().seconds - 1), forms[i].fits ? "" : " (does not fit)");
  }
  return cat(context_text(forms.front().form), "; predicted step times of others: ", others);
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
