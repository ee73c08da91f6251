// Cost model: predicts the time of a step on a target from its trace.
//
// Seconds of a GEMM or of attention; other ops have no first term:
//   max(FLOP / (FLOP/s of that kind of op), bytes read and written / memory bandwidth (bytes/s), launch latency (s))
// Seconds of a transfer between host and device, if the target has a host link:
//   max(latency of the host link (s), bytes / its bandwidth (bytes/s))
// Seconds of a collective; of a send, a receive or an exchange with the bytes of the message and the bandwidth of a
// pair:
//   link latency (s) + bytes sent by this rank / bandwidth (bytes/s)
// Bandwidth of a group on one node: that of the node's link. Of a group over several nodes (rings that use all ports):
//   min(intra-node bandwidth, sum of the network links of the group's members on one node)
// Of a pair: that of the link of its group, one rank's. A ring whose neighbours are on several nodes waits for the
// slowest.
//
// Streams are concurrent queues that wait for each other's events. The step takes at least as long as all collectives
// on one link together. On a target without overlap the times of all ops and collectives of a rank add up, without the
// waiting for other ranks.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "device/trace.h"
#include "plan/target.h"
#include "program/checker.h"
#include "tensor/dtype.h"

namespace hawser::plan {

// Ranks of a communicator, parsed from its name (comm/mesh.h): "shard:0-7/gather" has ranks 0 to 7, "replicate:1-5:4"
// ranks 1 and 5, "data:0-1,4-5" ranks 0, 1, 4 and 5.
//   name  = kind:range[,range...][/suffix]
//   range = first[-last[:stride]]
struct Members {
  int count = 1;            // number of members
  int first = 0, last = 0;  // the first member's rank and the highest rank
  int on_first_node = 1;    // members on the first member's node
};
// A node is a block of `ranks_per_node` consecutive ranks, the first of which is a multiple of it. If it is 0,
// nodes are unknown, and on_first_node is 0.
Members members_of(const std::string& communicator, int ranks_per_node);

// The part of a communicator's name before its first colon: "shard" for "shard:0-7/gather".
std::string group_kind(const std::string& communicator);

// Bytes that this rank sends in a collective of `count` members. `counted`: of rows that the device counts, it sends
// these (Target::sends_counted_rows), not their bound.
double bytes_sent(const CollectiveNote& note, int count, bool counted);

// Attention in the plain kernel (ops/attention/attention.h), at the target's rate for float32.
inline constexpr char kSlowAttention[] = "attention, slow kernel";

struct StepTime {
  double seconds = 0;
  double alone = 0;  // of it, if the messages of the other ranks of step_times() were always there
  // Seconds of work, summed over streams, by category: "GEMM", "attention", kSlowAttention, "other work",
  // "communication", "host transfers" (with a host link), and "waits in the ring" (Forecaster).
  std::map<std::string, double> busy;
};

// `compute`: the dtype whose FLOP/s apply. `rate_scale`: multiplier of the target's FLOP/s and memory bandwidth: the
// number of this rank's cores if they are per core (Target::per_core), else 1.
StepTime step_time(const Trace& trace, const Target& target, DType compute, double rate_scale);

// The same of several ranks that wait for each other, such as pipeline stages: the time of each. Members of a group
// that are not among them are assumed to arrive with those that are.
std::vector<StepTime> step_times(const std::vector<program::RankTrace>& ranks, const Target& target, DType compute,
                                 double rate_scale);

// Seconds of each item of a trace, 0 of what is no work: what step_time() adds up.
std::vector<double> item_seconds(const Trace& trace, const Target& target, DType compute, double rate_scale);

// Seconds of a step of pipeline stages: until all have ended it.
double seconds_of(const std::vector<StepTime>& stages);
// The fraction of a step in which pipeline stages wait for each other, the mean of the stages; 0 of one stage.
double bubble_of(const std::vector<StepTime>& stages);

}  // namespace hawser::plan
