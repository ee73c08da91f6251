// `Service`: the one thread that calls MPI, and the queue of work for it.
//
// An Exchange is a set of messages that complete together. Exchanges are posted to MPI in the order of post(), so those
// of one caller keep their order, and messages with the same (pair of ranks, tag) match in that order. The thread also
// checks every exchange's deadline, and ends the run when one passes.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/frozen_time.h"
#include "device/trace.h"

namespace hawser::comm {

using Clock = std::chrono::steady_clock;

// One collective or control operation of one rank, as named in a failure message.
struct Operation {
  std::string name;  // "all_reduce"
  std::string group;
  std::int64_t bytes = 0;
  std::shared_ptr<const std::string> phase;  // the host's phase when it requested the operation
  double timeout_s = 0;
  Clock::time_point started;

  std::string text() const;  // "all_reduce on data:0-3 (4096 bytes)"
};
using OperationPtr = std::shared_ptr<const Operation>;

struct Message {
  enum class Way { send, receive };
  Way way = Way::send;
  int rank = 0;  // of the other side, in the world
  int tag = 0;
  std::byte* data = nullptr;  // not changed by a send
  std::int64_t bytes = 0;     // any size; split into pieces that fit MPI's int counts
};

class Exchange {
 public:
  Exchange(OperationPtr operation, std::vector<Message> messages)
      : operation_(std::move(operation)), messages_(std::move(messages)), open_(messages_.size(), 0) {}
  // Blocks until every message is done. Returns only on success: a failure ends the process.
  void wait() const { done_.wait(0, std::memory_order_acquire); }

 private:
  friend class Service;
  // Sequentially consistent. With a release store, notify_all could look for sleepers before the store is visible to a
  // waiter that is about to sleep, find none, and the waiter would never wake.
  void finish() {
    done_.store(1);
    done_.notify_all();
  }

  OperationPtr operation_;
  std::vector<Message> messages_;
  std::vector<int> open_;  // by message: MPI requests that are not complete
  int total_open_ = 0;
  std::atomic<int> done_ = 0;
};
using ExchangePtr = std::shared_ptr<Exchange>;

class Service {
 public:
  // Starts the thread and MPI. on_abort: as in World; may be empty. If MPI has not started within start_limit, this
  // process ends with a line and ExitCode::rank_failed.
  Service(std::function<void(int)> on_abort, std::chrono::seconds start_limit, std::int64_t piece_bytes);
  ~Service();  // ends them; nothing may be in progress, and every rank must destroy its service
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  void set_phase(std::string phase);
  std::shared_ptr<const std::string> phase() const;

  ExchangePtr post(OperationPtr operation, std::vector<Message> messages);
  void finished(OperationPtr operation);  // becomes "last done" of a failure message

  // Writes `message` as one line of this rank to stderr.
  void report(const std::string& message) const;
  // Reports the message and ends every rank.
  [[noreturn]] void fail(const std::string& message);
  [[noreturn]] void abort(int code);

  // Tags separate the traffic of groups, and of operations within a group. Group 0 is World's own.
  int new_group() { return next_group_++; }
  enum class TagKind { collective, pair };
  int tag(int group, TagKind kind, std::uint64_t sequence) const;

 private:
  struct Requests;  // parallel arrays of MPI requests and their owners

  void run();
  void start_mpi();
  // Calls `call`. If it does not return in time, calls `report` and ends the process. Time in which the process was
  // stopped does not count.
  void expect_return(const std::function<void()>& call, std::chrono::seconds limit,
                     const std::function<void()>& report);
  void end_mpi();
  bool take(Requests& requests);
  bool complete(Requests& requests);
  void check_deadlines(Clock::time_point now);
  void pause(Clock::duration idle, bool busy);
  [[noreturn]] void end_run(int code);
  std::string context_of(const Operation& operation) const;

  int rank_ = 0, size_ = 1, group_bits_ = 0, sequence_bits_ = 0, next_group_ = 1;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<ExchangePtr> incoming_;
  bool started_ = false, closing_ = false;
  std::function<void(int)> on_abort_;
  const std::int64_t piece_bytes_;
  std::chrono::seconds start_limit_;
  std::atomic<int> abort_code_ = -1;
  std::shared_ptr<const std::string> phase_;
  OperationPtr last_done_;

  std::vector<ExchangePtr> active_;  // used by the thread only
  FrozenTime frozen_;                // the same
  std::thread thread_;               // last member: starts when all others are initialized
};

}  // namespace hawser::comm
