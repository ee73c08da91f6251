// A timeline's summary as JSON, for --json. Internal to cli/.
#pragma once

#include <nlohmann/json.hpp>

#include "profile/timeline_summary.h"

namespace hawser::cli {

nlohmann::ordered_json timeline_json(const profile::TimelineSummary& summary);

}  // namespace hawser::cli
