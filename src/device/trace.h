// `Trace`: the work that a device was asked to do, as data.
//
// Every operation enqueued on a stream has an OpRecord: its name, the bytes it reads and writes, its FLOPs, its memory
// traffic and, for communication, its collective. The meta device stores the op records, in order, as a Trace; plan/
// places buffers from it, program/ proves it free of races and deadlocks. The other devices do the work; a debug mode
// checks them against the trace of the plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/op_kind.h"

namespace hawser {

// `rows` runs of `row_bytes` bytes, `stride` bytes apart, starting at `address`. rows = 1: one contiguous run.
struct Access {
  std::uint64_t address = 0;
  std::int64_t row_bytes = 0;
  std::int64_t rows = 1;
  std::int64_t stride = 0;
  bool write = false;

  std::uint64_t end() const { return address + static_cast<std::uint64_t>((rows - 1) * stride + row_bytes); }
};

// True if the two share a byte. Exact for equal strides that rows do not straddle, else compares the address ranges.
bool overlap(const Access& a, const Access& b);

enum class CollectiveKind {
  none,
  all_gather,
  reduce_scatter,
  all_reduce,
  all_to_all,
  all_to_all_v,  // rows that the device counts: `bytes` has the bound of each slot
  broadcast,
  send,
  receive,
  exchange,  // a send to `peer` and a receive from `source` in one
  barrier
};
const char* to_string(CollectiveKind kind);

// One member's part in a collective. All members of a communicator must record equal sequences of these.
struct CollectiveNote {
  CollectiveKind kind = CollectiveKind::none;
  std::string communicator;   // the same string on every member: "shard:0,1,2,3/gather"
  std::int64_t bytes = 0;     // payload; must be equal on all members
  double expected_bytes = 0;  // all_to_all_v: what a member is expected to send if it sends counted rows only
  int peer = -1;              // send, receive, exchange: index of the other member in the communicator
  int source = -1;            // exchange: index of the member that is received from
  std::int64_t label = 0;     // send, receive, exchange, all_reduce: what is sent or reduced, equal on all members
};

struct OpRecord {
  const char* name = "";  // a string literal: "rms_norm_forward"
  OpKind kind;
  std::vector<Access> accesses;
  double flops = 0;
  double bytes = 0;  // memory traffic; 0: the sum of the accesses
  CollectiveNote collective;
  // For ops with several kernels: the one chosen on the planned device, and why not a faster one:
  // "plain (float32 operands; precision.compute: bf16 avoids it)". On meta only.
  std::string implementation{};
};

struct TraceItem {
  enum class Kind { work, record_event, wait };
  Kind kind = Kind::work;
  int stream = 0;
  int instruction = -1;                   // index of the program's instruction; -1: none
  int target = -1;                        // wait: index of the record_event item waited for
  OpRecord record{.kind = OpKind::none};  // work only
};

struct Trace {
  std::vector<std::string> streams;  // names; TraceItem::stream indexes them
  std::vector<TraceItem> items;      // in the order of the host's calls
};

}  // namespace hawser
