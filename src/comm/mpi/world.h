// `World`: the processes of a run, over MPI. `Channel`: control messages between them.
//
//   int main() {
//     comm::World world(/*timeout_s=*/120.0);
//     try {
//       auto mesh = comm::make_mpi_mesh(world, sizes, 120.0);
//       world.set_phase("step 12 backward");
//       ...
//     } catch (const std::exception& error) {
//       std::cerr << error.what() << '\n';
//       world.abort(1);  // ends every rank
//     }
//   }
//
// One thread of each process calls MPI. It starts and ends MPI, accepts messages from the streams' workers and from the
// host, and polls: it spins for microseconds, then sleeps an eighth of the time waited so far, at most 200 us.
// Everything is point-to-point, so creating a group needs no message, a wait always knows which ranks it waits for, and
// results do not depend on MPI's algorithms.
//
// A failure ends all ranks. When an operation exceeds its time limit, or MPI reports an error, the rank writes one line
//   rank 0: all_reduce on data:0-3 (4096 bytes) waited 120 s for ranks 2, 3; phase: step 12 backward; last done: ...
// to stderr and aborts the run with ExitCode::rank_failed. Every rank ends within 10 s of the limit, including a
// stopped one. If a rank is killed, the launcher or the time limit ends the others.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/units.h"

namespace hawser::comm {

class Service;

// Control messages between all ranks outside of steps. Calls block the calling thread; every rank makes the same calls
// in the same order, from one thread at a time. A call costs two messages per rank, through rank 0. A channel is
// independent of all groups and of other channels: a thread with its own channel never waits for other threads'
// operations.
class Channel {
 public:
  Channel(std::shared_ptr<Service> service, std::string name, int group, double timeout_s);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  Rank rank() const;
  int size() const;

  std::vector<std::string> all_gather_strings(const std::string& mine);        // by rank
  std::string broadcast_bytes(const std::string& bytes, Rank root = Rank(0));  // root's; ignores the other ranks' bytes
  bool any(bool mine);                                                         // true if `mine` is true on any rank
  std::uint64_t any_of(std::uint64_t mine);                                    // any() for 64 flags: bitwise or
  void barrier();

 protected:
  std::shared_ptr<Service> service_;

 private:
  class Control;
  std::uint64_t meet(Control& control, std::uint64_t mine);

  std::string name_;
  int group_;
  double timeout_s_;
  std::uint64_t controls_ = 0;  // control operations so far
};

// The processes of the run, and their first channel.
class World : public Channel {
 public:
  // Starts MPI; at most once per process. timeout_s is the limit of each control operation, and of the destructor; that
  // of the start is at least 120 s.
  // on_abort gets the exit code before this rank ends the run, from any thread. `piece_bytes`: larger messages are sent
  // in several MPI messages, whose counts are int; the same on every rank.
  explicit World(double timeout_s = 120.0, std::function<void(int)> on_abort = {},
                 std::int64_t piece_bytes = std::int64_t{1} << 30);
  // Waits for the other ranks, then ends MPI. During stack unwinding it aborts the run with ExitCode::internal instead.
  // Meshes, channels and streams with work on them must be destroyed before.
  ~World();

  // What this rank is doing, for failure messages. Each collective stores the phase that is set when it is enqueued.
  void set_phase(std::string phase);

  // Ends every rank of the run; this process and the launcher exit with `code`. Callable from any thread.
  [[noreturn]] void abort(int code);

  // One more channel, for another thread; failure messages contain `name`. Every rank calls it, in the same order
  // relative to its other calls that create groups or channels.
  std::unique_ptr<Channel> open_channel(const std::string& name);

  // This rank's index among the ranks of its host: selects its GPU.
  int local_rank();

  Service& service() { return *service_; }  // for comm/ only

 private:
  double timeout_s_;
  int exceptions_;  // uncaught exceptions when this was constructed
};

}  // namespace hawser::comm
