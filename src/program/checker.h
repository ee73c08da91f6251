// Proves a traced program free of races, deadlocks and mismatched collectives, without a device.
#pragma once

#include <string>
#include <vector>

#include "device/trace.h"
#include "program/placement.h"

namespace hawser::program {

// What one rank will do: its trace, its buffers and where they lie.
struct RankTrace {
  int rank = 0;
  const Trace* trace = nullptr;
  const std::vector<Buffer>* buffers = nullptr;
  const Placement* placement = nullptr;
};

// One line a defect; empty: none. At most kMaxDefects lines.
constexpr int kMaxDefects = 20;

// Within one rank: two accesses to the same bytes, one of them a write, must be ordered; bytes are shared by two
// buffers only if all accesses to the one are over before any to the other; bytes that are read must have been written
// in this trace, by an earlier item, unless the buffer's purpose is kPersistent. With a placement: every buffer in use
// lies aligned and inside the arena.
std::vector<std::string> check_memory(const RankTrace& rank);

// Across ranks: every member of a communicator asks for the same collectives in one order, and for them in an order
// that its own streams and events fix; sends and receives pair up; and running all streams of all ranks, where a
// collective ends when every member has reached it and a send when its receive is there, comes to an end. Members that
// are not among `ranks` are taken to do what the given ones do.
//
// Sends and receives name members by index. Members are numbered in the order of their ranks (comm/mesh.h), so that
// the pairs are known where all members of a communicator are among `ranks`; where they are not, these are taken as
// met.
std::vector<std::string> check_collectives(const std::vector<RankTrace>& ranks);

}  // namespace hawser::program
