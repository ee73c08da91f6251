// `with_ema`: an optimizer that also keeps the exponential moving average of the weights (ops/ema/ema.h), after each
// update that was not skipped. Slot, after those of `optimizer`: "ema", float32.
//
//   with_ema(make_adamw({}), 0.999)
#pragma once

#include <memory>

#include "optim/optimizer.h"

namespace hawser::optim {

inline constexpr const char* kEmaSlot = "ema";

// `decay` is in (0, 1).
std::shared_ptr<const Optimizer> with_ema(std::shared_ptr<const Optimizer> optimizer, double decay);

}  // namespace hawser::optim
