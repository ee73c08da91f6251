#include "models/param_groups.h"

#include <algorithm>

#include "base/printable.h"

namespace hawser::models {

namespace {

class Groups {
 public:
  explicit Groups(const std::vector<ParamGroup>& groups) {
    for (const ParamGroup& group : groups) names_.emplace_back(group.match);
  }
  // From 1; 0: none.
  int of(const std::string& tensor) const {
    const auto selects = [&](const ParamNames& names) { return names.find(tensor).has_value(); };
    const auto found = std::ranges::find_if(names_, selects);
    return found == names_.end() ? 0 : static_cast<int>(found - names_.begin()) + 1;
  }

 private:
  std::vector<ParamNames> names_;
};

// What the trained parameters have of a group.
struct Selected {
  std::vector<bool> entries;  // that select one which no earlier group has
  bool matrix = false;
};

std::vector<Selected> selected(const Model& model, const std::vector<ParamGroup>& groups) {
  const Groups all(groups);
  std::vector<ParamNames> names;
  std::vector<Selected> out;
  for (const ParamGroup& group : groups) {
    names.emplace_back(group.match);
    out.push_back({.entries = std::vector<bool>(group.match.size())});
  }
  for (const NamedParam& named : named_params(model)) {
    const int group = named.trainable ? all.of(named.tensor) : 0;
    if (group == 0) continue;
    Selected& here = out[static_cast<std::size_t>(group) - 1];
    here.matrix = here.matrix || named.param->decay;
    const ParamNames& of = names[static_cast<std::size_t>(group) - 1];
    for (std::size_t entry = 0; entry < here.entries.size(); ++entry) {
      if (!here.entries[entry]) here.entries[entry] = of.selects(static_cast<int>(entry), named.tensor);
    }
  }
  return out;
}

}  // namespace

nn::FlatSpecOf with_groups(nn::FlatSpecOf spec_of, const std::vector<ParamGroup>& groups) {
  return nn::FlatSpecOf(
      [of = std::move(spec_of), groups = Groups(groups)](const nn::Param& param, const nn::UnitId& place) {
        nn::FlatSpec spec = of(param, place);
        if (spec.trainable) spec.group = groups.of(param.segments.front().name);
        return spec;
      });
}

void check_groups(const Model& model, const std::vector<ParamGroup>& groups, const Problem& place, Problems& problems) {
  const Groups all(groups);
  const std::vector<Selected> found = selected(model, groups);
  for (std::size_t group = 0; group < groups.size(); ++group) {
    const std::size_t before = problems.size();
    check_known(model, groups[group].match, place, problems);
    const bool known = problems.size() == before;
    for (std::size_t entry = 0; known && entry < groups[group].match.size(); ++entry) {
      const std::string& text = groups[group].match[entry];
      if (found[group].entries[entry]) continue;
      Problem useless = place;
      useless.what = "a group without a parameter that trains and is in no earlier group";
      useless.got = printable(text);
      problems.add(std::move(useless));
    }
    if (!known || !groups[group].decays || found[group].matrix) continue;
    Problem vectors = place;
    vectors.what = "weight decay of a group without a matrix";
    vectors.got = printable(joined(groups[group].match));
    vectors.hint = "the group without weight_decay";
    problems.add(std::move(vectors));
  }
  Problem together = place;
  together.what = "these are one parameter, which is in one group as a whole";
  check_undivided(
      model, [&](const std::string& name) { return all.of(name); }, together, problems);
}

}  // namespace hawser::models
