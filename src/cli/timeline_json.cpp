#include "cli/timeline_json.h"

namespace hawser::cli {

nlohmann::ordered_json timeline_json(const profile::TimelineSummary& summary) {
  nlohmann::ordered_json json{{"rank", summary.rank}, {"seconds", summary.seconds}};
  for (const profile::LaneUse& lane : summary.lanes) json["busy_seconds"][lane.name] = lane.busy_s;
  json["compute_idle_seconds"] = summary.compute_idle_s;
  json["communication_seconds"] = summary.communication_s;
  json["exposed_communication_seconds"] = summary.exposed_communication_s;
  json["spans_without_instruction"] = summary.unknown_spans;
  for (const profile::TimelineGap& gap : summary.gaps) {
    json["gaps"].push_back({{"at", gap.at_s},
                            {"seconds", gap.seconds},
                            {"after", gap.before},
                            {"before", gap.after},
                            {"meanwhile", gap.meanwhile}});
  }
  for (const profile::FamilyUse& use : summary.families) {
    json["families"][use.family] = {{"seconds", use.busy_s}, {"overlapping_communication", use.overlapped_s}};
    if (use.slowdown > 0) json["families"][use.family]["slowdown"] = use.slowdown;
  }
  return json;
}

}  // namespace hawser::cli
