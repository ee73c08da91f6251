#include "generate/token_sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/error.h"

namespace hawser::generate {

namespace {

// The largest, the first of equal ones; ignores NaN.
std::size_t largest_of(std::span<const float> logits) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < logits.size(); ++i) {
    if (logits[i] > logits[best] || std::isnan(logits[best])) best = i;
  }
  if (logits.empty() || !std::isfinite(logits[best])) {
    throw UserError(Problem{.what = "the model's logits are not finite; check its weights"});
  }
  return best;
}

}  // namespace

const std::vector<Sampler::Candidate>& Sampler::candidates(std::span<const float> logits) {
  HAWSER_CHECK(sampling_.temperature > 0, "candidates without a temperature");
  const double largest = logits[largest_of(logits)];
  float min = -std::numeric_limits<float>::infinity();
  if (sampling_.top_k && *sampling_.top_k < static_cast<std::int64_t>(logits.size())) {
    values_.assign(logits.begin(), logits.end());
    const auto kth = values_.begin() + (*sampling_.top_k - 1);
    std::nth_element(values_.begin(), kth, values_.end(), std::greater<>());
    min = *kth;
  }
  candidates_.clear();
  double total = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] >= min)) continue;
    const double weight = std::exp((static_cast<double>(logits[i]) - largest) / sampling_.temperature);
    if (weight == 0) continue;  // never sampled
    candidates_.push_back({static_cast<std::int32_t>(i), weight});
    total += weight;
  }
  if (sampling_.top_p >= 1) return candidates_;
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.id < b.id;
  };
  // Usually few tokens are kept, so the largest are sorted to the front in growing pieces, as many as needed.
  double sum = 0;
  std::size_t kept = 0, sorted = 0;
  while (kept < candidates_.size() && (kept == 0 || sum < sampling_.top_p * total)) {
    if (kept == sorted) {
      const std::size_t more = std::min(candidates_.size(), std::max<std::size_t>(64, 4 * sorted));
      std::partial_sort(candidates_.begin() + static_cast<std::ptrdiff_t>(sorted),
                        candidates_.begin() + static_cast<std::ptrdiff_t>(more), candidates_.end(), before);
      sorted = more;
    }
    sum += candidates_[kept++].weight;
  }
  candidates_.resize(kept);
  return candidates_;
}

std::int32_t Sampler::pick(std::span<const float> logits, std::int64_t prompt, std::int64_t position) {
  if (sampling_.temperature == 0) return static_cast<std::int32_t>(largest_of(logits));
  const std::vector<Candidate>& all = candidates(logits);
  double total = 0;
  for (const Candidate& candidate : all) total += candidate.weight;
  double left = total * random_.uniform(static_cast<std::uint64_t>(position), static_cast<std::uint64_t>(prompt));
  for (const Candidate& candidate : all) {
    left -= candidate.weight;
    if (left < 0) return candidate.id;
  }
  return all.back().id;  // reached by rounding only
}

}  // namespace hawser::generate
