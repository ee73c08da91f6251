// What a device is asked to do, as data.
//
// Every piece of work enqueued on a stream comes with a OpRecord: its name, the bytes it reads and writes, its FLOPs,
// its memory traffic and, for communication, the collective it takes part in. The meta device keeps the op records, in
// order, as a Trace; plan/ places buffers from it, program/ proves it free of races and deadlocks. The other devices
// do the work; a debug mode holds them to the trace that the plan was made from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

// True where the two touch a byte in common. Exact for equal strides that rows do not straddle, else by hull.
bool overlap(const Access& a, const Access& b);

enum class CollectiveKind {
  none,
  all_gather,
  reduce_scatter,
  all_reduce,
  all_to_all,
  broadcast,
  send,
  receive,
  barrier
};
const char* to_string(CollectiveKind kind);

// One member's part in a collective. Members of one communicator must record equal sequences of these.
struct CollectiveNote {
  CollectiveKind kind = CollectiveKind::none;
  std::string communicator;  // the same string on every member: "shard:0,1,2,3/gather"
  std::int64_t bytes = 0;    // the payload that all members must agree on
  int peer = -1;             // send and receive: the other member's index in the communicator
};

struct OpRecord {
  const char* name = "";  // a literal: "rms_norm_forward"
  std::vector<Access> accesses;
  double flops = 0;
  double bytes = 0;  // memory traffic; 0: the sum of the accesses
  CollectiveNote collective;
  // Which of its kernels an op with several takes on the device that is planned for, and why it is not a faster one:
  // "plain (float32 operands; cuDNN takes bf16)". On meta alone.
  std::string implementation{};
};

struct TraceItem {
  enum class Kind { work, record, wait };
  Kind kind = Kind::work;
  int stream = 0;
  int instruction = -1;  // instruction of the program that asked for it; -1 outside any
  int target = -1;       // wait: index of the record item that it waits for
  OpRecord record;       // work only
};

struct Trace {
  std::vector<std::string> streams;  // names; TraceItem::stream indexes them
  std::vector<TraceItem> items;      // in the order in which the host asked
};

}  // namespace hawser
