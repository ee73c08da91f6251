// `TimelineSummary`: how busy the streams were, what communication cost, and where the compute stream was idle.
#pragma once

#include <string>
#include <vector>

#include "profile/timeline.h"

namespace hawser::profile {

struct LaneUse {
  std::string name;
  double busy_s = 0;
  std::int64_t spans = 0;
};

// An interval in which the compute stream was idle.
struct TimelineGap {
  double at_s = 0, seconds = 0;  // since the step's first span
  std::string before, after;     // instruction and op: "forward block 3 mlp: gemm"
  std::string meanwhile;         // the busiest lane during the gap, with its share; empty if all were idle
};

struct FamilyUse {
  std::string family;       // profile/work_family.h
  double busy_s = 0;        // on the compute stream
  double overlapped_s = 0;  // part of busy_s during which another stream communicated
  // Time of the work that overlapped communication over the time of the same work (same position in the same kind of
  // instruction) elsewhere in the step without overlap. 0 if there is no such pair.
  double slowdown = 0;
};

struct TimelineSummary {
  int rank = 0;
  double seconds = 0;  // from the first span on a stream to the end of the last
  std::vector<LaneUse> lanes;
  double compute_idle_s = 0;
  double communication_s = 0;          // a stream communicated
  double exposed_communication_s = 0;  // part of it with no other work on the compute stream
  std::vector<TimelineGap> gaps;       // the longest, in descending order
  std::vector<FamilyUse> families;     // in descending order of busy_s
  std::int64_t unknown_spans = 0;      // on streams, without an instruction
};

// `timeline` is in order (put_in_order).
TimelineSummary summarize(const RankTimeline& timeline, std::size_t max_gaps = 10);

// Of pipeline stages, by one rank of each or by all: the fraction of the step in which the compute stream runs no
// computation, the mean of the ranks. Waits in collectives count.
double idle_of(const std::vector<RankTimeline>& ranks);

// Tables for the first rank, then one line for each further rank.
std::string summary_text(const std::vector<TimelineSummary>& ranks);

}  // namespace hawser::profile
