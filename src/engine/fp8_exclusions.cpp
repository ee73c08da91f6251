#include "engine/fp8_exclusions.h"

#include <algorithm>

#include "base/nearest.h"
#include "base/printable.h"
#include "config/config.h"

namespace hawser::engine {

namespace {

bool names_one_of(const models::ModuleName& entry, const std::vector<std::string>& modules) {
  return std::ranges::any_of(modules, [&](const std::string& module) { return entry.matches(module); });
}

}  // namespace

Fp8Exclusions::Fp8Exclusions(const Recipe& recipe, const std::vector<std::string>& fallbacks, Problems& problems)
    : place_(problem_at(recipe, "precision.fp8.exclude")) {
  for (const std::string& module : fallbacks) fallbacks_.push_back({module});
  for (const std::string& text : recipe.precision.fp8.exclude) {
    if (std::optional<models::ModuleName> entry = models::module_name_of(text)) {
      entries_.push_back(std::move(*entry));
      continue;
    }
    problems.add({.file = place_.file,
                  .what = "not a regular expression",
                  .got = printable(text),
                  .at = place_.at,
                  .hint = "a name such as down_proj, or .*[.][01][.].*down_proj"});
  }
}

bool Fp8Exclusions::contains(const nn::Param& param) const {
  if (entries_.empty() && fallbacks_.empty()) return false;
  const std::vector<std::string> modules = models::linear_modules(param);
  const auto names_one = [&](const models::ModuleName& entry) { return names_one_of(entry, modules); };
  return std::ranges::any_of(entries_, names_one) || std::ranges::any_of(fallbacks_, names_one);
}

void Fp8Exclusions::check(const models::ModelDescription& description, Problems& problems) const {
  if (entries_.empty()) return;
  const models::Model model(description);
  const std::vector<std::string> linears = models::quantizable_linears(model), modules = models::modules_of(model);
  const std::vector<std::string> known = models::last_parts(linears);
  for (const models::ModuleName& entry : entries_) {
    if (names_one_of(entry, linears)) continue;
    const bool other = names_one_of(entry, modules);
    problems.add({.file = place_.file,
                  .what = other ? "this module is never in FP8" : "the model has no such Linear",
                  .expected = models::joined(known),
                  .got = printable(entry.text),
                  .at = place_.at,
                  .hint = other ? std::string() : nearest(entry.text, known)});
  }
}

std::string Fp8Exclusions::without_effect(const models::Model& model, const Fp8Blocks& blocks) const {
  std::vector<std::string> linears;
  for (int layer = 0; layer < model.layers(); ++layer) {
    if (!blocks.contains(model.block_of(layer))) continue;
    for (const models::ParamIndex& place : model.layer_params(layer)) {
      const nn::Param& param = model.flat(place.flat).params()[static_cast<std::size_t>(place.index)];
      if (!param.of_linear) continue;
      for (std::string& module : models::linear_modules(param)) linears.push_back(std::move(module));
    }
  }
  std::string out;
  for (const models::ModuleName& entry : entries_) {
    if (!names_one_of(entry, linears)) out += cat(out.empty() ? "" : ", ", printable(entry.text));
  }
  return out;
}

}  // namespace hawser::engine
