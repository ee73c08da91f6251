#include "nn/blocks/router_loss.h"

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

}  // namespace hawser::nn
