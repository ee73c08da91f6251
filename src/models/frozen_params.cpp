#include "models/frozen_params.h"

#include <algorithm>

namespace hawser::models {

nn::FlatSpecOf freeze(nn::FlatSpecOf spec_of, ParamNames frozen) {
  return nn::FlatSpecOf(
      [of = std::move(spec_of), frozen = std::move(frozen)](const nn::Param& param, const nn::UnitId& place) {
        nn::FlatSpec spec = of(param, place);
        if (frozen.find(param.segments.front().name)) spec.trainable = false;
        return spec;
      });
}

void check_frozen(const ModelDescription& description, const std::vector<std::string>& entries, const Problem& place,
                  Problems& problems) {
  const Model model(description);
  const ParamNames frozen(entries);
  const std::size_t before = problems.size();
  check_known(model, entries, place, problems);
  Problem together = place;
  together.what = "these are one parameter, which trains or is frozen as a whole";
  check_undivided(
      model, [&](const std::string& name) { return frozen.find(name) ? 1 : 0; }, together, problems);
  if (problems.size() != before) return;
  const auto trains = [&](const NamedParam& named) { return !frozen.find(named.tensor); };
  if (std::ranges::any_of(named_params(model), trains)) return;
  Problem all = place;
  all.what = "all parameters are frozen";
  all.expected = "one that trains";
  problems.add(std::move(all));
}

}  // namespace hawser::models
