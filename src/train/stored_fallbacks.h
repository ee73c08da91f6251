// `stored_fallbacks`: the Linears that a resumed run computes without FP8 although its recipe does not exclude them.
#pragma once

#include <vector>

#include "engine/fp8_fallback.h"
#include "plan/run_plan.h"

namespace hawser::train {

// RunState::fp8_fallbacks of the newest complete checkpoint in the plan's folder; empty if there is none, if it cannot
// be read, which is reported when it is loaded, and without precision.compute: fp8. Does not communicate.
std::vector<engine::Fp8Fallback> stored_fallbacks(const plan::RunPlan& plan);

}  // namespace hawser::train
