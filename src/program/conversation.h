// `Conversation`: which collectives, sends and receives of several ranks' traces meet.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "program/checker.h"

namespace hawser::program {

// One item's part in a collective, and the parts that it must match. An exchange has two: a send and a receive.
struct Part {
  enum class Role { collective, send, receive };
  int item = 0;
  const CollectiveNote* note = nullptr;
  Role role = Role::collective;
  int peer = -1;  // sends and receives: the other member
  int communicator = 0;
  int number = 0;  // index in this rank's collectives on the communicator; for pairs, in the sends or receives per peer
  int partner = -1;  // sends and receives: index of the other rank in `ranks`, -1 if unknown
  // Parts that meet have one number, the same on all ranks. It is -1 of a part that waits for no other
  // rank, because none is known.
  int meeting = -1;
};

class Conversation {
 public:
  // What `ranks` points to outlives this.
  explicit Conversation(const std::vector<RankTrace>& ranks);

  const std::vector<Part>& parts(std::size_t rank) const { return parts_[rank]; }  // in list order
  int communicators() const { return static_cast<int>(members_.size()); }
  // Indices in `ranks`, sorted by rank.
  const std::vector<std::size_t>& members(int communicator) const {
    return members_[static_cast<std::size_t>(communicator)];
  }
  int meetings() const { return static_cast<int>(sizes_.size()); }
  int parts_of_meeting(int meeting) const { return sizes_[static_cast<std::size_t>(meeting)]; }

 private:
  void number_meetings();

  std::vector<std::vector<Part>> parts_;           // by rank, in list order
  std::vector<std::vector<std::size_t>> members_;  // by communicator
  std::vector<int> sizes_;                         // by meeting: the parts that it needs
};

// Runs the streams of all ranks as queues: an item starts when the one before it in its stream and what it waits for
// have ended, and the parts of a meeting start together. `seconds(rank, item)`: how long an item takes. Returns when
// each rank's last item ends; infinity if it never does (a deadlock).
std::vector<double> end_times(const std::vector<RankTrace>& ranks,
                              const std::function<double(std::size_t rank, int item)>& seconds);

// The same of each item, by rank.
std::vector<std::vector<double>> item_end_times(const std::vector<RankTrace>& ranks,
                                                const std::function<double(std::size_t rank, int item)>& seconds);

}  // namespace hawser::program
