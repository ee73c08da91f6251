// `Watchdog`: enforces the time limit. One thread follows every collective enqueued on the GPU, and every call of the
// host that blocks until other ranks arrive.
//
// A collective is enqueued between two events of its stream. The thread polls them (every kLook): the first starts the
// collective's time, the second ends it. When the time limit passes, or NCCL reports an error, the thread writes one
// line and ends every rank of the run:
//   rank 0: all_gather on shard:0-3/gather (8192 bytes) waited 120 s for the other members (ranks 0-3);
//   phase: step 12 forward; last done: ...
// Cost per collective: two event records and short locks. Events come from a pool, and nothing waits for the GPU.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/mpi/service.h"

struct ncclComm;    // of nccl.h
struct CUevent_st;  // of cuda_runtime_api.h
struct CUstream_st;

namespace hawser::comm {

class Watchdog {
 public:
  // `service` outlives it; `ordinal` is the GPU of the streams.
  Watchdog(Service& service, int ordinal, double timeout_s);
  // All groups must have been removed before.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // One group's operations, in the order in which the host enqueued them.
  class Line;
  // `comm` is null until the group has one; `members` is for failure messages.
  std::shared_ptr<Line> add(std::string group, std::string members);
  void set_communicator(Line& line, ncclComm* comm);
  // No operation of the group may be in progress. The communicator is the caller's again.
  void remove(const std::shared_ptr<Line>& line);

  // Runs `enqueue`, which puts a collective's work on the stream, and watches it: while `enqueue` runs (NCCL connects
  // members at their first use, on the host) and until the stream has done the work. `name` is a literal.
  void follow(Line& line, const char* name, std::int64_t bytes, CUstream_st* stream,
              const std::function<void()>& enqueue);
  // Runs `call`, which blocks the host until other ranks arrive, and watches it.
  void guard(Line& line, const char* name, const std::function<void()>& call);

 private:
  struct Operation;
  class HostCall;

  void run();
  void look(Clock::time_point now, bool errors);
  void check_host(Line& line, Clock::time_point now);
  void check_front(Line& line, Clock::time_point now);
  void expect_in_time(const Line& line, const Operation& operation, Clock::time_point now);
  [[noreturn]] void fail(const Line& line, const Operation& operation, const std::string& what);
  CUevent_st* take_event();

  Service& service_;
  int ordinal_;
  double timeout_s_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::shared_ptr<Line>> lines_;
  std::vector<CUevent_st*> spare_;
  std::string last_done_ = "nothing";
  FrozenTime frozen_;
  int under_way_ = 0;  // collectives and host calls
  bool closing_ = false;
  std::thread thread_;  // last member: starts when all others are initialized
};

}  // namespace hawser::comm
