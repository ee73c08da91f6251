// `RankTimeline`: when each stream of a rank did what, for one step; and its file format for Perfetto and Chrome.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hawser::profile {

// A piece of work with one begin and one end: a kernel or a copy on a GPU, an op on the CPU.
struct TimelineSpan {
  enum class Kind {
    kernel,  // cuda
    copy,    // cuda: memory copies and fills
    work,    // cpu: an op record; cuda: host work of an op
    host     // the host enqueues an instruction
  };
  Kind kind = Kind::kernel;
  std::int64_t begin = 0, end = 0;  // ns since the epoch, on one clock for all ranks of a machine
  int lane = 0;                     // index into RankTimeline::lanes
  int instruction = -1;             // index into RankTimeline::instructions; -1: none
  int op = -1;                      // index of the op record, in host order; -1: unknown
  std::string name;                 // "nvjet_sm90_tst_128x256…"; of an op, its own name
  std::string op_name;              // of the op record: "rms_norm_forward"
  std::string family;               // of its work (work_family.h): "norm"
  bool communication = false;
};

// A figure that was sampled during the step.
struct TimelineCounter {
  struct Point {
    std::int64_t at = 0;  // ns since the epoch
    double value = 0;
  };
  std::string name, unit;  // "power", "W"
  std::vector<Point> points;
};

struct RankTimeline {
  int rank = 0;
  std::vector<std::string> lanes;         // "host", then streams: "compute", "gather", "reduce, internal"
  std::vector<std::string> instructions;  // of the program: "forward block 3 mlp"
  std::vector<TimelineSpan> spans;
  std::vector<TimelineCounter> counters;  // of the rank's GPU
};

// Sorts by lane and begin. Spans of a lane do not overlap; where clocks differ slightly, the later span is cut.
void put_in_order(RankTimeline& timeline);

// A run of adjacent spans of one lane with the same instruction or op.
struct TimelineGroup {
  std::int64_t begin = 0, end = 0;
  int lane = 0;
  std::size_t first = 0, count = 0;  // spans
};
std::vector<TimelineGroup> groups_by_instruction(
    const RankTimeline& timeline);  // leaves out spans without an instruction; `timeline` is in order
std::vector<TimelineGroup> groups_by_op(const RankTimeline& timeline);

// One JSON object in Chrome's trace format, times in microseconds since the first span. A rank is a process, a lane is
// a thread; in a lane, instructions contain ops and ops contain kernels. Counters are counter events. Timelines are in
// order.
std::string to_chrome_trace(const std::vector<RankTimeline>& ranks);
// Reads such a text. UserError at `file` if to_chrome_trace did not write it.
std::vector<RankTimeline> read_chrome_trace(const std::string& text, const std::string& file);

}  // namespace hawser::profile
