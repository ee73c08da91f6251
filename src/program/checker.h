// Checker: proves that a traced program is free of races, deadlocks and mismatched collectives, without a device.
#pragma once

#include <string>
#include <vector>

#include "device/trace.h"
#include "program/placement.h"

namespace hawser::program {

// What one rank will do: its trace, its buffers and their placement.
struct RankTrace {
  int rank = 0;
  const Trace* trace = nullptr;
  const std::vector<Buffer>* buffers = nullptr;
  const Placement* placement = nullptr;
};

// Each check returns one line per defect, at most kMaxDefects; empty if there is none.
constexpr int kMaxDefects = 20;

// Checks one rank. Two accesses to the same bytes, one of them a write, must be ordered. Two buffers may share bytes
// only if all accesses to one are over before any access to the other starts. Bytes that are read must have been
// written in this trace by an earlier item, unless the buffer's purpose is kPersistent. With a placement, every used
// buffer must be aligned and inside the arena.
std::vector<std::string> check_memory(const RankTrace& rank);

// Checks collectives across ranks. Every member of a communicator must call the same collectives in one order, and its
// own streams and events must fix that order. Sends and receives must pair up. Running all streams of all ranks must
// end, where a collective ends when every member has reached it, and a send when its receive is reached. Members that
// are not among `ranks` are assumed to behave as the given ones.
//
// Sends and receives name members by index. Members are numbered in the order of their ranks (comm/mesh.h), so the
// pairs are known if all members of a communicator are among `ranks`; otherwise its sends and receives count as
// matched.
std::vector<std::string> check_collectives(const std::vector<RankTrace>& ranks);

}  // namespace hawser::program
