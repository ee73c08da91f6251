// The processes of a run, through MPI.
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
// One thread of each process calls MPI: it starts and ends it, takes messages from the streams' workers and from the
// host, and polls (spinning for microseconds, then sleeping an eighth of the time it has waited so far, 200 us at
// most). Everything is made of point-to-point messages, so making a group needs no message, a wait always knows whom
// it waits for, and results do not depend on MPI's algorithms.
//
// Failure ends all ranks. When an operation's time limit passes, or MPI reports an error, the rank writes one line
//   rank 0: all_reduce on data:0-3 (4096 bytes) waited 120 s for ranks 2, 3; phase: step 12 backward; last done: ...
// to stderr and aborts the run with ExitCode::rank_failed: every rank ends within 10 s of the limit, also one that is
// stopped. A killed rank ends the others through the launcher, or through the limit.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/units.h"

namespace hawser::comm {

class Service;

// Control traffic of all ranks outside steps, blocking the thread that asks; every rank calls the same in the same
// order, from one thread at a time. Costs two messages a rank through rank 0. Independent of all groups, and of other
// channels: a thread with a channel of its own never waits for what the others are at.
class Channel {
 public:
  Channel(std::shared_ptr<Service> service, std::string name, int group, double timeout_s);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  Rank rank() const;
  int size() const;

  std::vector<std::string> all_gather_strings(const std::string& mine);        // by rank
  std::string broadcast_bytes(const std::string& bytes, Rank root = Rank(0));  // root's; others' argument is ignored
  bool any(bool mine);                                                         // true where one rank says true
  std::uint64_t any_of(std::uint64_t mine);                                    // the same for 64 questions, a bit each
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

// The run's processes, and their first channel.
class World : public Channel {
 public:
  // Starts MPI; once in a process. timeout_s is the limit of each control operation (and of closing).
  explicit World(double timeout_s = 120.0);
  // Meets the other ranks, then ends MPI. Destroyed by an exception: aborts the run with ExitCode::internal instead.
  // Meshes, channels and streams with work on them must be gone.
  ~World();

  // What this rank is doing, for the line about a failure. Kept with each collective enqueued from now on.
  void set_phase(std::string phase);

  // Ends every rank of the run; this process's exit code is `code`, and the launcher's too. Any thread.
  [[noreturn]] void abort(int code);

  // One more channel, for another thread; `name` stands in the line about a failure. Every rank calls it, in the same
  // order as what else makes groups.
  std::unique_ptr<Channel> open_channel(const std::string& name);

  // This rank's number among the ranks of its machine: which of its GPUs to take.
  int local_rank();

  Service& service() { return *service_; }  // for comm/ only

 private:
  double timeout_s_;
  int exceptions_;  // in flight when this was made
};

}  // namespace hawser::comm
