// How long a step takes on a target, from its trace.
//
// The model is simple and states itself: a piece of work takes the longest of FLOPs / rate of its kind, bytes read and
// written / copy rate, and the launch time. A collective takes the link's latency plus the bytes that leave this rank /
// rate. Streams are queues that run side by side and wait for each other's events; no link is faster than all the bytes
// that it carries in the step. On a target without overlap the times of all streams add up.
//
// A group over several nodes runs at the node's own rate or at that of its members' links out of the node together,
// whichever is less (rings that use every port).
#pragma once

#include <map>
#include <string>

#include "device/trace.h"
#include "plan/target.h"
#include "tensor/dtype.h"

namespace hawser::plan {

// The ranks of a communicator, from its name ("shard:0-7/gather", "replicate:1-5:4").
struct Members {
  int count = 1, first = 0, last = 0;
  int near_first = 1;  // of them in the same block of `block` ranks as the first
};
Members members_of(const std::string& communicator, int block);

// "shard" of "shard:0-7/gather".
std::string group_kind(const std::string& communicator);

// Bytes that one rank sends in a collective of `count` members.
double bytes_sent(const CollectiveNote& note, int count);

struct StepTime {
  double seconds = 0;
  std::map<std::string, double> busy;  // seconds by what took them: "GEMM", "attention", "other work", "messages"
};

// `share`: of the target's rates that a rank has (per_core targets: its cores; else 1).
StepTime step_time(const Trace& trace, const Target& target, DType compute, double share);

}  // namespace hawser::plan
