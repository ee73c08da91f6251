#include "models/linear_names.h"

#include <algorithm>
#include <set>

#include "base/cat.h"
#include "base/name_pattern.h"

namespace hawser::models {

namespace {

std::string last_part(const std::string& name) {
  return name.substr(name.rfind('.') + 1);
}

void add_modules(const nn::Param& param, std::vector<std::string>& out) {
  for (const nn::Segment& segment : param.segments) out.push_back(module_of(segment.name));
}

}  // namespace

std::optional<ModuleName> module_name_of(const std::string& text) {
  if (!is_pattern(text)) return ModuleName{text};
  std::optional<std::regex> pattern = compiled_pattern(text);
  if (!pattern) return std::nullopt;
  return ModuleName{text, std::move(pattern)};
}

bool ModuleName::matches(const std::string& module) const {
  return pattern ? std::regex_match(module, *pattern) : module == text || module.ends_with("." + text);
}

std::string module_of(const std::string& tensor) {
  return tensor.substr(0, tensor.rfind('.'));
}

std::vector<std::string> last_parts(const std::vector<std::string>& names) {
  std::vector<std::string> out;
  for (const std::string& name : names) {
    if (std::ranges::find(out, last_part(name)) == out.end()) out.push_back(last_part(name));
  }
  return out;
}

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += cat(out.empty() ? "" : ", ", word);
  return out;
}

std::vector<std::string> modules_of(const Model& model) {
  std::vector<std::string> out;
  for (const nn::Flat& flat : model.flats()) {
    for (const nn::Param& param : flat.params()) add_modules(param, out);
  }
  return out;
}

std::vector<std::string> linear_modules(const nn::Param& param) {
  std::vector<std::string> out;
  if (param.modules.empty()) add_modules(param, out);
  for (std::int64_t e = 0; e < std::max<std::int64_t>(param.experts, 1); ++e) {
    for (const std::string& module : param.modules) {
      const std::size_t number = module.find("{}");
      out.push_back(number == module.npos ? module : cat(module.substr(0, number), e, module.substr(number + 2)));
    }
  }
  return out;
}

std::vector<std::string> quantizable_linears(const Model& model) {
  std::vector<std::string> out;
  std::set<std::string> seen;  // the first module of each Linear: it may have several weights
  for (const nn::Flat& flat : model.flats()) {
    for (const nn::Param& param : flat.params()) {
      if (!param.of_linear) continue;
      const std::vector<std::string> modules = linear_modules(param);
      if (seen.insert(modules.front()).second) out.insert(out.end(), modules.begin(), modules.end());
    }
  }
  return out;
}

std::vector<std::string> modules_at(const Model& model, int layer, nn::Site site) {
  std::vector<std::string> out;
  for (const int weight : model.layer(layer).linear_weights(site)) {
    const ParamIndex& place = model.layer_params(layer)[static_cast<std::size_t>(weight)];
    const nn::Param& param = model.flat(place.flat).params()[static_cast<std::size_t>(place.index)];
    if (!param.modules.empty()) return linear_modules(param);
    add_modules(param, out);
  }
  return out;
}

}  // namespace hawser::models
