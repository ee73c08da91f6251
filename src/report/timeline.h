// When each stream of each rank did what, for one step; and the same as a file that Perfetto and Chrome show.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hawser::report {

// A piece of work with one beginning and one end: on a GPU a kernel or a copy, on the CPU a whole op.
struct TimelineSpan {
  enum class Kind {
    kernel,  // cuda
    copy,    // cuda: memory copies and fills
    work,    // cpu: what an op record asked for; cuda: what it had the host do
    host     // the host enqueues a row
  };
  Kind kind = Kind::kernel;
  std::int64_t begin = 0, end = 0;  // ns since the epoch, of one clock for all ranks of a machine
  int lane = 0;                     // index into RankTimeline::lanes
  int instruction = -1;             // index into RankTimeline::rows; -1: of no row
  int op = -1;                      // which piece of recorded work, in the order of the host; -1 unknown
  std::string name;                 // "nvjet_sm90_tst_128x256…", of an op its own
  std::string op_name;              // of the op record: "gemm"
  bool communication = false;
};

struct RankTimeline {
  int rank = 0;
  std::vector<std::string> lanes;         // "host", then streams: "compute", "gather", "reduce, internal"
  std::vector<std::string> instructions;  // of the program: "forward block 3 mlp"
  std::vector<TimelineSpan> spans;
};

// Sorts by lane and beginning. A lane's spans follow one another; where clocks say otherwise by a hair the later one is
// cut.
void put_in_order(RankTimeline& timeline);

// A run of neighbouring spans of one lane that belong together.
struct TimelineGroup {
  std::int64_t begin = 0, end = 0;
  int lane = 0;
  std::size_t first = 0, count = 0;  // spans
};
std::vector<TimelineGroup> groups_by_instruction(
    const RankTimeline& timeline);  // rows of -1 are left out; `timeline` in order
std::vector<TimelineGroup> groups_by_op(const RankTimeline& timeline);

// One JSON object in Chrome's trace format, times in microseconds since the first span of all: a rank is a process, a
// lane a thread, and on it rows hold ops and these the kernels. Timelines are in order.
std::string to_chrome_trace(const std::vector<RankTimeline>& ranks);
// The timelines of such a text. UserError, with `file` as its place, where it is none that to_chrome_trace wrote.
std::vector<RankTimeline> read_chrome_trace(const std::string& text, const std::string& file);

}  // namespace hawser::report
