#include "engine/fp8_fallback.h"

#include <algorithm>

namespace hawser::engine {

void SaturationHistory::add(const SaturatedStep& saturated) {
  std::erase_if(steps_, [&](const SaturatedStep& old) { return old.step <= saturated.step - kWindow; });
  if (std::ranges::find(steps_, saturated) == steps_.end()) steps_.push_back(saturated);
}

std::optional<SaturatedStep> SaturationHistory::due(std::int64_t limit) const {
  if (limit == 0) return std::nullopt;
  for (auto newest = steps_.rbegin(); newest != steps_.rend(); ++newest) {
    const auto is_same = [&](const SaturatedStep& kept) { return kept.same_linear(*newest); };
    if (count(*newest) >= limit && std::ranges::none_of(kept_, is_same)) return *newest;
  }
  return std::nullopt;
}

std::int64_t SaturationHistory::count(const SaturatedStep& linear) const {
  return std::ranges::count_if(steps_, [&](const SaturatedStep& step) { return step.same_linear(linear); });
}

std::vector<std::string> modules_of(const std::vector<Fp8Fallback>& fallbacks) {
  std::vector<std::string> out;
  for (const Fp8Fallback& fallback : fallbacks) {
    out.insert(out.end(), fallback.modules.begin(), fallback.modules.end());
  }
  return out;
}

}  // namespace hawser::engine
