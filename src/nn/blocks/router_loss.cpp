#include "nn/blocks/router_loss.h"

#include <algorithm>
#include <numeric>

#include "nn/layer.h"
#include "ops/moe/router.h"

namespace hawser::nn {

std::int64_t RouterLoss::statistics() const {
  return ops::router_statistics_size(config_.experts);
}

std::int64_t RouterLoss::factors() const {
  return ops::router_factors_size(config_.experts);
}

void RouterLoss::run(LayerContext& ctx, const Views& views) const {
  ops::router_loss(ctx.compute(), {.statistics = views.statistics,
                                   .factors = views.factors,
                                   .scale = views.scale,
                                   .loss = views.loss,
                                   .share = views.share,
                                   .balance_coefficient = config_.balance_coefficient,
                                   .z_coefficient = config_.z_coefficient,
                                   .accumulate = views.accumulate});
}

double RouterLoss::of(std::span<const double> all) const {
  const auto size = static_cast<std::size_t>(statistics()), experts = static_cast<std::size_t>(config_.experts);
  std::vector<double> sums(size);
  for (std::size_t i = 0; i < all.size(); ++i) sums[i % size] += all[i];
  const double n = sums[2 * experts + 1];
  if (n == 0) return 0;
  double balance = 0;
  for (std::size_t e = 0; e < experts; ++e) balance += sums[e] / n * (sums[experts + e] / n);
  return config_.balance_coefficient * static_cast<double>(experts) * balance +
         config_.z_coefficient * sums[2 * experts] / n;
}

ExpertLoad expert_load(std::span<const float> statistics, std::int64_t experts) {
  const auto size = static_cast<std::size_t>(ops::router_statistics_size(experts));
  ExpertLoad load;
  double sum = 0;
  for (std::size_t layer = 0; layer + size <= statistics.size(); layer += size) {
    const auto counts = statistics.subspan(layer, static_cast<std::size_t>(experts));
    load.tokens.emplace_back(counts.begin(), counts.end());
    const std::vector<double>& tokens = load.tokens.back();
    const double total = std::accumulate(tokens.begin(), tokens.end(), 0.0);
    sum += total > 0 ? *std::ranges::max_element(tokens) * static_cast<double>(experts) / total : 1;
  }
  if (!load.tokens.empty()) load.imbalance = sum / static_cast<double>(load.tokens.size());
  return load;
}

}  // namespace hawser::nn
