#include "models/param_names.h"

#include <algorithm>
#include <set>

#include "base/name_pattern.h"
#include "base/nearest.h"
#include "base/printable.h"

namespace hawser::models {

ParamNames::ParamNames(const std::vector<std::string>& entries) {
  for (const std::string& entry : entries) entries_.push_back(module_name_of(entry));
}

bool ParamNames::selects(int entry, const std::string& tensor) const {
  const std::optional<ModuleName>& name = entries_[static_cast<std::size_t>(entry)];
  if (!name) return false;
  // The tensor, and each module that contains it.
  for (std::size_t end = tensor.size(); end != std::string::npos; end = tensor.rfind('.', end - 1)) {
    if (name->matches(tensor.substr(0, end))) return true;
    if (end == 0) break;
  }
  return false;
}

std::optional<int> ParamNames::find(const std::string& tensor) const {
  for (int entry = 0; entry < static_cast<int>(entries_.size()); ++entry) {
    if (selects(entry, tensor)) return entry;
  }
  return std::nullopt;
}

namespace {

// The second name of the embedding's table; "" if the head has a tensor of its own.
std::string tied_name(const Model& model) {
  const ModelDescription& description = model.description();
  return description.head.tied && !description.head.output.empty() ? description.head.output + ".weight" : "";
}

}  // namespace

std::vector<NamedParam> named_params(const Model& model) {
  std::vector<NamedParam> out;
  const auto add = [&](const std::string& tensor, const nn::Flat& flat, const nn::Param& param) {
    out.push_back({.tensor = tensor, .param = &param, .trainable = flat.spec().trainable});
  };
  for (const nn::Flat& flat : model.flats()) {
    for (const nn::Param& param : flat.params()) {
      for (const nn::Segment& segment : param.segments) add(segment.name, flat, param);
    }
  }
  if (const std::string tied = tied_name(model); !tied.empty()) {
    const ParamIndex& table = model.embedding_params().front();
    const nn::Flat& flat = model.flat(table.flat);
    add(tied, flat, flat.params()[static_cast<std::size_t>(table.index)]);
  }
  return out;
}

void check_known(const Model& model, const std::vector<std::string>& entries, const Problem& place,
                 Problems& problems) {
  const ParamNames of(entries);
  const std::vector<NamedParam> params = named_params(model);
  std::vector<std::string> modules;
  for (const NamedParam& named : params) modules.push_back(module_of(named.tensor));
  const std::vector<std::string> known = last_parts(modules);
  const auto selects = [&](const ParamNames& names, int entry) {
    return std::ranges::any_of(params, [&](const NamedParam& named) { return names.selects(entry, named.tensor); });
  };
  for (int i = 0; i < static_cast<int>(entries.size()); ++i) {
    if (selects(of, i)) continue;
    const std::string& entry = entries[static_cast<std::size_t>(i)];
    const std::string anywhere = ".*" + entry;  // a regular expression that is meant to match a part of a name
    Problem unknown = place;
    unknown.what = "the model has no such parameter";
    unknown.expected = joined(known);
    unknown.got = printable(entry);
    unknown.hint = is_pattern(entry) && selects(ParamNames({anywhere}), 0) ? anywhere : nearest(entry, known);
    problems.add(std::move(unknown));
  }
}

void check_undivided(const Model& model, const std::function<int(const std::string& tensor)>& of,
                     const Problem& problem, Problems& problems) {
  std::set<std::string> reported;
  const auto check = [&](const nn::Param& param) {
    std::vector<int> chosen;
    for (const nn::Segment& segment : param.segments) chosen.push_back(of(segment.name));
    const auto [least, most] = std::ranges::minmax_element(chosen);
    if (*least == *most) return;
    std::vector<std::string> all, some;
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      all.push_back(module_of(param.segments[i].name));
      if (chosen[i] == *most) some.push_back(all.back());
    }
    Problem divided = problem;
    divided.expected = "all of " + joined(last_parts(all));
    divided.got = joined(last_parts(some));
    if (divided.expected == "all of " + divided.got) divided.got = some.front();  // of experts
    if (reported.insert(divided.expected).second) problems.add(std::move(divided));
  };
  for (const nn::Flat& flat : model.flats()) std::ranges::for_each(flat.params(), check);
  const std::string tied = tied_name(model);
  if (tied.empty()) return;
  const std::string table = model.description().embedding.table + ".weight";
  if (of(tied) == of(table)) return;
  Problem divided = problem;
  divided.what = "the embedding and the head are one tensor";
  divided.expected = cat("both of ", module_of(table), " and ", module_of(tied), ", or neither");
  divided.got = module_of(of(tied) > of(table) ? tied : table);
  problems.add(std::move(divided));
}

}  // namespace hawser::models
