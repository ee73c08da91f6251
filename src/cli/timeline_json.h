// A timeline's summary as JSON, for --json. Internal to cli/.
#pragma once

#include <nlohmann/json.hpp>

#include "report/timeline_summary.h"

namespace hawser::cli {

nlohmann::ordered_json timeline_json(const report::TimelineSummary& summary);

}  // namespace hawser::cli
