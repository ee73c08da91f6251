// Cost model: predicts the time of a step on a target from its trace.
//
// Time of a piece of work:
//   max(FLOPs / rate of its kind, bytes read and written / copy rate, launch time)
// Time of a collective:
//   link latency + bytes sent by this rank / link rate
// Streams are concurrent queues that wait for each other's events. The step takes at least the sum of the times of all
// collectives on one link. On a target without overlap the times of all streams add up.
//
// The rate of a group over several nodes is the minimum of the node's internal rate and the sum of its members' links
// out of the node (rings that use all ports).
#pragma once

#include <map>
#include <string>

#include "device/trace.h"
#include "plan/target.h"
#include "tensor/dtype.h"

namespace hawser::plan {

// Ranks of a communicator, parsed from its name ("shard:0-7/gather", "replicate:1-5:4").
struct Members {
  int count = 1, first = 0, last = 0;
  int near_first = 1;  // members in the first member's block of `block` ranks
};
Members members_of(const std::string& communicator, int block);

// The part of a communicator's name before the colon: "shard" for "shard:0-7/gather".
std::string group_kind(const std::string& communicator);

// Bytes that one rank sends in a collective of `count` members.
double bytes_sent(const CollectiveNote& note, int count);

struct StepTime {
  double seconds = 0;
  std::map<std::string, double> busy;  // seconds by category: "GEMM", "attention", "other work", "communication"
};

// `share`: fraction of the target's rates that a rank has: with per_core its cores, otherwise 1.
StepTime step_time(const Trace& trace, const Target& target, DType compute, double share);

}  // namespace hawser::plan
