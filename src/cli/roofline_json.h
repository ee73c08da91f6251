// The ceilings of a benchmark's step, as JSON and as text. Internal to cli/.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "profile/roofline.h"
#include "profile/step_mix.h"

namespace hawser::cli {

// {"terms":[...],"burst":{"seconds":1.5,"ratio":0.9},"alone":{...},"mix":{...}}; ratio: seconds / step_seconds.
// A ceiling that could not be measured has a "problem" instead.
nlohmann::ordered_json roofline_json(const profile::Roofline& roofline, const profile::StepMix& mix,
                                     double step_seconds);

// The terms, then a line for each ceiling with the share of the step that it is.
std::string roofline_text(const profile::Roofline& roofline, const profile::StepMix& mix, double step_seconds);

}  // namespace hawser::cli
