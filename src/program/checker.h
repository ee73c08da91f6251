// `check_memory`, `check_collectives`: prove, from traces of the meta device, that a program is free of races,
// deadlocks and mismatched collectives.
#pragma once

#include <string>
#include <vector>

#include "device/trace.h"
#include "program/placement.h"

namespace hawser::program {

// The trace of one rank's step, its buffers and their placement.
struct RankTrace {
  int rank = 0;
  const Trace* trace = nullptr;
  const std::vector<Buffer>* buffers = nullptr;  // required by check_memory
  const Placement* placement = nullptr;          // of the device's arena. Offsets without one are not checked.
  const Placement* host_placement = nullptr;     // of the host's
};

// Each check returns one line per defect, at most kMaxDefects lines; it returns no lines if there is no defect.
constexpr int kMaxDefects = 20;

// Checks the memory accesses of one rank:
// - Every access must be inside one buffer.
// - Of two accesses to the same bytes of a buffer, at least one of them a write, one must have completed before the
//   other starts.
// - Every byte that is read must have been written by an earlier item of this trace, unless the buffer is persistent.
// - With a placement, every accessed buffer of its space must have an aligned offset and be inside the arena. Two
//   buffers
//   may share bytes only if every access to one has completed before any access to the other starts.
std::vector<std::string> check_memory(const RankTrace& rank);

// Checks collectives across ranks:
// - All members of a communicator must call the same collectives with the same sizes and labels in the same order, and
//   each rank's streams and events must enforce that order.
// - The k-th send from one member to another must have the size and label of the receiver's k-th receive from the
//   sender. An
//   exchange is a send and a receive.
// - A simulation of all streams of all ranks must not deadlock. In it, a collective completes when every member's
//   stream has reached it; a send and its receive complete when both have been reached, and an exchange when both of its
//   parts have.
// Members that are not among `ranks` are assumed to make the same calls as those that are.
//
// Sends and receives name the other member by its index in the communicator. Members are numbered in ascending order of
// rank (comm/mesh.h). If all members of a communicator are among `ranks`, the index therefore determines the rank;
// otherwise the sends and receives of that communicator are assumed to match.
std::vector<std::string> check_collectives(const std::vector<RankTrace>& ranks);

}  // namespace hawser::program
