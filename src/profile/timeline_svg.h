// SVG of a timeline: one row per stream, coloured by family of work (profile/work_family.h).
#pragma once

#include <string>
#include <vector>

#include "profile/timeline.h"

namespace hawser::profile {

struct SvgWindow {
  double begin_s = 0, end_s = 0;  // since the first work on a stream of any rank; equal: the full timeline
};

// Readable on light and dark pages: no background, greys and mid-tones. Timelines are in order.
std::string to_svg(const std::vector<RankTimeline>& ranks, const SvgWindow& window = {});

}  // namespace hawser::profile
