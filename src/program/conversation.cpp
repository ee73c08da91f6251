#include "program/conversation.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <tuple>

namespace hawser::program {

namespace {

// The parts of a collective, without their numbers.
std::vector<Part> parts_of(const CollectiveNote& note) {
  switch (note.kind) {
    case CollectiveKind::none:
      return {};
    case CollectiveKind::send:
      return {{.role = Part::Role::send, .peer = note.peer}};
    case CollectiveKind::receive:
      return {{.role = Part::Role::receive, .peer = note.peer}};
    case CollectiveKind::exchange:
      return {{.role = Part::Role::send, .peer = note.peer}, {.role = Part::Role::receive, .peer = note.source}};
    default:
      return {{}};
  }
}

}  // namespace

Conversation::Conversation(const std::vector<RankTrace>& ranks) : parts_(ranks.size()) {
  std::map<std::string, int> ids;
  std::vector<int> max_peer;  // by communicator: largest member index of a send or receive
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const auto& items = ranks[r].trace->items;
    std::map<std::tuple<int, int, int>, int> numbers;  // by communicator, role, peer
    for (std::size_t i = 0; i < items.size(); ++i) {
      const CollectiveNote& note = items[i].record.collective;
      if (note.kind == CollectiveKind::none) continue;
      const auto [id, added] = ids.try_emplace(note.communicator, static_cast<int>(members_.size()));
      if (added) members_.emplace_back(), max_peer.push_back(-1);
      const auto c = static_cast<std::size_t>(id->second);
      if (members_[c].empty() || members_[c].back() != r) members_[c].push_back(r);
      for (Part part : parts_of(note)) {
        max_peer[c] = std::max(max_peer[c], part.peer);
        part.item = static_cast<int>(i);
        part.note = &note;
        part.communicator = id->second;
        part.number = numbers[{id->second, static_cast<int>(part.role), part.peer}]++;
        parts_[r].push_back(part);
      }
    }
  }
  for (auto& members : members_) {
    std::ranges::sort(members, [&](std::size_t a, std::size_t b) { return ranks[a].rank < ranks[b].rank; });
  }
  for (auto& parts : parts_) {
    for (Part& part : parts) {
      const auto& members = members_[static_cast<std::size_t>(part.communicator)];
      const bool all_here = max_peer[static_cast<std::size_t>(part.communicator)] < static_cast<int>(members.size());
      if (part.role == Part::Role::collective || !all_here || members.size() < 2) continue;
      part.partner = static_cast<int>(members[static_cast<std::size_t>(part.peer)]);
    }
  }
  number_meetings();
}

void Conversation::number_meetings() {
  // All members' parts of one collective, or a send and its receive: communicator, sender and receiver or -1, number.
  std::map<std::tuple<int, int, int, int>, int> ids;
  for (std::size_t r = 0; r < parts_.size(); ++r) {
    const int own = static_cast<int>(r);
    for (Part& part : parts_[r]) {
      const bool pair = part.role != Part::Role::collective;
      const int size = pair ? 2 : static_cast<int>(members(part.communicator).size());
      if (size < 2 || (pair && part.partner < 0)) continue;
      const bool sends = part.role == Part::Role::send;
      const int from = !pair ? -1 : sends ? own : part.partner, to = !pair ? -1 : sends ? part.partner : own;
      const auto [id, added] =
          ids.try_emplace({part.communicator, from, to, part.number}, static_cast<int>(sizes_.size()));
      if (added) sizes_.push_back(size);
      part.meeting = id->second;
    }
  }
}

namespace {

class Clock {
 public:
  using Seconds = std::function<double(std::size_t rank, int item)>;

  Clock(const std::vector<RankTrace>& ranks, const Conversation& conversation, const Seconds& seconds)
      : ranks_(ranks), seconds_(seconds), meetings_(static_cast<std::size_t>(conversation.meetings())) {
    for (std::size_t m = 0; m < meetings_.size(); ++m) {
      meetings_[m].missing = conversation.parts_of_meeting(static_cast<int>(m));
    }
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      const auto& items = ranks[r].trace->items;
      RankClock rank;
      rank.ends.assign(items.size(), -1);
      rank.queues.resize(ranks[r].trace->streams.size());
      rank.now.assign(rank.queues.size(), 0);
      rank.arrived.assign(rank.queues.size(), false);
      for (std::size_t i = 0; i < items.size(); ++i) {
        rank.queues[static_cast<std::size_t>(items[i].stream)].push_back(static_cast<int>(i));
      }
      for (const Part& part : conversation.parts(r)) {
        if (part.meeting >= 0) rank.meetings[part.item].push_back(part.meeting);
      }
      clocks_.push_back(std::move(rank));
    }
  }

  void run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t r = 0; r < clocks_.size(); ++r) {
        for (std::size_t s = 0; s < clocks_[r].queues.size(); ++s) {
          while (advance(r, s)) moved = true;
        }
      }
    }
  }

  // Of each rank.
  std::vector<double> ends() const {
    std::vector<double> ends;
    for (const RankClock& rank : clocks_) {
      const bool done = std::ranges::all_of(rank.queues, [](const auto& queue) { return queue.empty(); });
      ends.push_back(done ? *std::ranges::max_element(rank.now) : std::numeric_limits<double>::infinity());
    }
    return ends;
  }

  std::vector<std::vector<double>> item_ends() {
    std::vector<std::vector<double>> ends;
    for (RankClock& rank : clocks_) {
      for (double& end : rank.ends) end = end < 0 ? std::numeric_limits<double>::infinity() : end;
      ends.push_back(std::move(rank.ends));
    }
    return ends;
  }

 private:
  struct Meeting {
    int missing = 0;   // parts that have not arrived
    double start = 0;  // the last arrival so far
  };
  struct RankClock {
    std::vector<double> ends;                  // by item; negative: it has not ended
    std::map<int, std::vector<int>> meetings;  // by item
    std::vector<std::deque<int>> queues;       // by stream
    std::vector<double> now;                   // by stream
    std::vector<bool> arrived;                 // by stream: its first item has arrived at its meetings
  };

  // Ends the first item of a stream if that is possible.
  bool advance(std::size_t r, std::size_t s) {
    RankClock& rank = clocks_[r];
    if (rank.queues[s].empty()) return false;
    const int i = rank.queues[s].front();
    const TraceItem& item = ranks_[r].trace->items[static_cast<std::size_t>(i)];
    double& now = rank.now[s];
    if (item.kind == TraceItem::Kind::wait) {
      const double reached = rank.ends[static_cast<std::size_t>(item.target)];
      if (reached < 0) return false;
      now = std::max(now, reached);
    } else if (item.kind == TraceItem::Kind::work) {
      if (!meet(rank, s, i)) return false;
      now += seconds_(r, i);
    }
    rank.ends[static_cast<std::size_t>(i)] = now;
    rank.queues[s].pop_front();
    return true;
  }

  // True if all parts of the item's meetings have arrived: the stream then continues at the last arrival.
  bool meet(RankClock& rank, std::size_t s, int item) {
    const auto found = rank.meetings.find(item);
    if (found == rank.meetings.end()) return true;
    bool all = true;
    double start = rank.now[s];
    for (const int m : found->second) {
      Meeting& meeting = meetings_[static_cast<std::size_t>(m)];
      if (!rank.arrived[s]) {
        --meeting.missing;
        meeting.start = std::max(meeting.start, rank.now[s]);
      }
      all = all && meeting.missing == 0;
      start = std::max(start, meeting.start);
    }
    rank.arrived[s] = !all;
    if (all) rank.now[s] = start;
    return all;
  }

  const std::vector<RankTrace>& ranks_;
  const Seconds& seconds_;
  std::vector<Meeting> meetings_;
  std::vector<RankClock> clocks_;
};

}  // namespace

std::vector<double> end_times(const std::vector<RankTrace>& ranks,
                              const std::function<double(std::size_t rank, int item)>& seconds) {
  const Conversation conversation(ranks);
  Clock clock(ranks, conversation, seconds);
  clock.run();
  return clock.ends();
}

std::vector<std::vector<double>> item_end_times(const std::vector<RankTrace>& ranks,
                                                const std::function<double(std::size_t rank, int item)>& seconds) {
  const Conversation conversation(ranks);
  Clock clock(ranks, conversation, seconds);
  clock.run();
  return clock.item_ends();
}

}  // namespace hawser::program
