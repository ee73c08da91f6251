// What a timeline says: how busy the streams were, what communication cost, where the compute stream stood still.
#pragma once

#include <string>
#include <vector>

#include "report/timeline.h"

namespace hawser::report {

struct LaneUse {
  std::string name;
  double busy_s = 0;
  std::int64_t spans = 0;
};

// A stretch in which the compute stream had nothing to do.
struct TimelineGap {
  double at_s = 0, seconds = 0;  // since the step's first span
  std::string before, after;     // rows, with the op: "forward block 3 mlp: gemm"
  std::string meanwhile;         // the lane that was busiest then, with its share; empty where all were idle
};

struct FamilyUse {
  std::string family;       // report/work_family.h
  double busy_s = 0;        // on the compute stream
  double overlapped_s = 0;  // of it, while another stream communicated
  // Time of the work that ran beside communication over the time that the same work (the same place of the same kind of
  // row) takes elsewhere in the step with none beside it; 0 where there is no such pair.
  double slowdown = 0;
};

struct TimelineSummary {
  int rank = 0;
  double seconds = 0;  // from the first span on a stream to the last one's end
  std::vector<LaneUse> lanes;
  double compute_idle_s = 0;
  double communication_s = 0;          // some stream communicated
  double exposed_communication_s = 0;  // of it, with no other work on the compute stream
  std::vector<TimelineGap> gaps;       // the longest, longest first
  std::vector<FamilyUse> families;     // most first
  std::int64_t unknown_spans = 0;      // on streams, of no row
};

// `timeline` is in order (put_in_order).
TimelineSummary summarize(const RankTimeline& timeline, std::size_t max_gaps = 10);

// The first rank's tables, then a line for each further rank.
std::string summary_text(const std::vector<TimelineSummary>& ranks);

}  // namespace hawser::report
