// `RouterLoss`: the load-balancing loss and the z-loss of a model's routers. Formulas: router_loss of ops/moe/router.h,
// whose statistics and factors are those of the contract. All layers have the same number of experts.
#pragma once

#include <span>
#include <vector>

#include "nn/auxiliary_loss.h"

namespace hawser::nn {

struct RouterLossConfig {
  std::int64_t experts = 0;
  double balance_coefficient = 0, z_coefficient = 0;
  bool operator==(const RouterLossConfig&) const = default;
};

class RouterLoss : public AuxiliaryLoss {
 public:
  explicit RouterLoss(RouterLossConfig config) : config_(config) {}
  const RouterLossConfig& config() const { return config_; }
  std::int64_t statistics() const override;
  std::int64_t factors() const override;
  void run(LayerContext& ctx, const Views& views) const override;
  // The loss of the statistics of all layers, [layers, statistics()], on the host in float64.
  double of(std::span<const double> all) const;

 private:
  RouterLossConfig config_;
};

// How the tokens of a step were distributed over the experts of each layer.
struct ExpertLoad {
  std::vector<std::vector<double>> tokens;  // [layers][experts]
  double imbalance = 1;  // mean over layers of the maximum over experts, divided by the mean over them
};
ExpertLoad expert_load(std::span<const float> statistics, std::int64_t experts);

}  // namespace hawser::nn
