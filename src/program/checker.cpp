#include "program/checker.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>

#include "base/cat.h"
#include "program/order.h"

namespace hawser::program {

namespace {

struct Use {
  int item;
  Access access;
};

std::string describe(const Trace& trace, int item) {
  const TraceItem& it = trace.items[static_cast<std::size_t>(item)];
  return cat(it.booking.name, " (row ", it.row, ", stream ", trace.streams[static_cast<std::size_t>(it.stream)],
             ", item ", item, ")");
}

class Defects {
 public:
  void add(std::string line) {
    if (static_cast<int>(lines_.size()) < kMostDefects) lines_.push_back(std::move(line));
  }
  bool full() const { return static_cast<int>(lines_.size()) >= kMostDefects; }
  std::vector<std::string> take() { return std::move(lines_); }

 private:
  std::vector<std::string> lines_;
};

// Unordered conflicting accesses within one buffer. Per stream only the accesses that a later one does not follow are
// of interest, but buffers are used a handful of times: all pairs across streams are compared.
void check_races(const Trace& trace, const Order& order, const std::string& name, const std::vector<Use>& uses,
                 Defects& defects) {
  for (std::size_t j = 0; j < uses.size() && !defects.full(); ++j) {
    for (std::size_t i = 0; i < j; ++i) {
      const Use &a = uses[i], &b = uses[j];
      if (!a.access.write && !b.access.write) continue;
      const int stream_a = trace.items[static_cast<std::size_t>(a.item)].stream;
      const int stream_b = trace.items[static_cast<std::size_t>(b.item)].stream;
      if (stream_a == stream_b || order.before(a.item, b.item) || order.before(b.item, a.item)) continue;
      if (overlap(a.access, b.access)) {
        defects.add(cat("race on ", name, ": ", describe(trace, a.item), " and ", describe(trace, b.item),
                        " are not ordered"));
        return;
      }
    }
  }
}

}  // namespace

std::vector<std::string> check_memory(const RankTrace& rank) {
  const Trace& trace = *rank.trace;
  const std::vector<Buffer>& buffers = *rank.buffers;
  const Order order(trace);
  const BufferIndex index(buffers);
  Defects defects;

  std::vector<std::vector<Use>> uses(buffers.size());
  for (std::size_t i = 0; i < trace.items.size(); ++i) {
    for (const Access& access : trace.items[i].booking.accesses) {
      const int buffer = index.find(access.address);
      if (buffer < 0) {
        defects.add(cat("access outside every buffer: ", describe(trace, static_cast<int>(i))));
      } else {
        uses[static_cast<std::size_t>(buffer)].push_back({static_cast<int>(i), access});
      }
    }
  }
  for (std::size_t b = 0; b < buffers.size(); ++b) {
    check_races(trace, order, buffers[b].name, uses[b], defects);
    if (!uses[b].empty() && !uses[b].front().access.write && buffers[b].purpose != kPersistent) {
      bool written_first = false;  // a kernel that reads and writes a buffer lists the read first
      for (const Use& use : uses[b]) {
        if (use.item != uses[b].front().item) break;
        written_first = written_first || use.access.write;
      }
      if (!written_first) {
        defects.add(cat(buffers[b].name, " is read before it is written: ", describe(trace, uses[b].front().item)));
      }
    }
  }

  if (rank.placement != nullptr) {
    const Lifetimes lifetimes(trace, order, buffers);
    std::vector<int> by_offset;
    for (std::size_t b = 0; b < buffers.size(); ++b) {
      if (rank.placement->offsets[b] >= 0) by_offset.push_back(static_cast<int>(b));
    }
    const auto begin = [&](int b) { return rank.placement->offsets[static_cast<std::size_t>(b)]; };
    const auto end = [&](int b) { return begin(b) + buffers[static_cast<std::size_t>(b)].bytes; };
    std::sort(by_offset.begin(), by_offset.end(), [&](int a, int b) { return begin(a) < begin(b); });
    for (std::size_t i = 0; i < by_offset.size() && !defects.full(); ++i) {
      if (end(by_offset[i]) > rank.placement->bytes) {
        defects.add(cat(buffers[static_cast<std::size_t>(by_offset[i])].name, " ends behind the arena"));
      }
      for (std::size_t j = i + 1; j < by_offset.size() && begin(by_offset[j]) < end(by_offset[i]); ++j) {
        if (lifetimes.disjoint(by_offset[i], by_offset[j])) continue;
        defects.add(cat(buffers[static_cast<std::size_t>(by_offset[i])].name, " and ",
                        buffers[static_cast<std::size_t>(by_offset[j])].name,
                        " share bytes, but their accesses are not ordered"));
      }
    }
  }
  return defects.take();
}

namespace {

std::string describe(const CollectiveNote& note) {
  return cat(to_string(note.kind), " of ", note.bytes, " bytes on ", note.communicator,
             note.peer >= 0 ? cat(" with member ", note.peer) : "");
}

bool point_to_point(CollectiveKind kind) { return kind == CollectiveKind::send || kind == CollectiveKind::receive; }

struct Part {
  int item;
  const CollectiveNote* note;
};

// Runs the streams of all ranks as queues until all are empty or none moves.
class Simulation {
 public:
  explicit Simulation(const std::vector<RankTrace>& ranks) : ranks_(ranks) {
    for (const RankTrace& rank : ranks) {
      RankState state;
      state.done.assign(rank.trace->items.size(), false);
      state.queues.resize(rank.trace->streams.size());
      for (std::size_t i = 0; i < rank.trace->items.size(); ++i) {
        const TraceItem& item = rank.trace->items[i];
        state.queues[static_cast<std::size_t>(item.stream)].push_back(static_cast<int>(i));
        if (item.booking.collective.kind != CollectiveKind::none &&
            !point_to_point(item.booking.collective.kind)) {
          ++members_[item.booking.collective.communicator][rank.rank];
        }
      }
      states_.push_back(std::move(state));
    }
  }

  void run(Defects& defects) {
    while (step()) {
    }
    for (std::size_t r = 0; r < states_.size(); ++r) {
      for (std::size_t s = 0; s < states_[r].queues.size(); ++s) {
        if (states_[r].queues[s].empty()) continue;
        const int item = states_[r].queues[s].front();
        const TraceItem& it = ranks_[r].trace->items[static_cast<std::size_t>(item)];
        const std::string what = it.kind == TraceItem::Kind::wait
                                     ? cat("an event of item ", it.target)
                                     : describe(it.booking.collective);
        defects.add(cat("deadlock: rank ", ranks_[r].rank, ", stream ", ranks_[r].trace->streams[s], " waits for ",
                        what, " (row ", it.row, ", item ", item, ")"));
      }
    }
  }

 private:
  struct RankState {
    std::vector<bool> done;
    std::vector<std::deque<int>> queues;
  };

  // Ends every head that can end; true where something moved.
  bool step() {
    bool moved = false;
    // communicator -> rank index -> (stream, item) that stands at a head
    std::map<std::string, std::vector<std::pair<std::size_t, std::size_t>>> waiting;
    for (std::size_t r = 0; r < states_.size(); ++r) {
      for (std::size_t s = 0; s < states_[r].queues.size(); ++s) {
        auto& queue = states_[r].queues[s];
        while (!queue.empty()) {
          const TraceItem& item = ranks_[r].trace->items[static_cast<std::size_t>(queue.front())];
          if (item.kind == TraceItem::Kind::wait && !states_[r].done[static_cast<std::size_t>(item.target)]) break;
          const CollectiveNote& note = item.booking.collective;
          if (item.kind == TraceItem::Kind::work && note.kind != CollectiveKind::none && has_partners(note)) {
            waiting[note.communicator].emplace_back(r, s);
            break;
          }
          finish(r, s);
          moved = true;
        }
      }
    }
    for (const auto& [communicator, heads] : waiting) moved = meet(communicator, heads) || moved;
    return moved;
  }

  bool has_partners(const CollectiveNote& note) const {
    if (point_to_point(note.kind)) return states_.size() > 1;
    return members_.at(note.communicator).size() > 1;
  }

  const CollectiveNote& head_note(std::size_t r, std::size_t s) const {
    return ranks_[r].trace->items[static_cast<std::size_t>(states_[r].queues[s].front())].booking.collective;
  }

  bool meet(const std::string& communicator, const std::vector<std::pair<std::size_t, std::size_t>>& heads) {
    const auto members = members_.find(communicator);
    if (members != members_.end()) {
      std::set<std::size_t> present;
      for (const auto& [r, s] : heads) {
        if (!point_to_point(head_note(r, s).kind)) present.insert(r);
      }
      if (present.size() == members->second.size()) {
        for (const auto& [r, s] : heads) finish(r, s);
        return true;
      }
    }
    for (const auto& [r, s] : heads) {
      if (head_note(r, s).kind != CollectiveKind::send) continue;
      for (const auto& [r2, s2] : heads) {
        // Member indices are unknown here; equal sizes on another rank that names a peer make a pair.
        if (r2 != r && head_note(r2, s2).kind == CollectiveKind::receive &&
            head_note(r2, s2).bytes == head_note(r, s).bytes) {
          finish(r, s);
          finish(r2, s2);
          return true;
        }
      }
    }
    return false;
  }

  void finish(std::size_t r, std::size_t s) {
    states_[r].done[static_cast<std::size_t>(states_[r].queues[s].front())] = true;
    states_[r].queues[s].pop_front();
  }

  const std::vector<RankTrace>& ranks_;
  std::vector<RankState> states_;
  std::map<std::string, std::map<int, int>> members_;  // communicator -> rank -> collectives
};

void check_order_within(const RankTrace& rank, const std::map<std::string, std::vector<Part>>& parts, Defects& defects) {
  const Order order(*rank.trace);
  for (const auto& [communicator, list] : parts) {
    for (std::size_t i = 1; i < list.size(); ++i) {
      const int a = list[i - 1].item, b = list[i].item;
      const auto& items = rank.trace->items;
      if (items[static_cast<std::size_t>(a)].stream != items[static_cast<std::size_t>(b)].stream &&
          !order.before(a, b)) {
        defects.add(cat("rank ", rank.rank, ": ", describe(*rank.trace, a), " and ", describe(*rank.trace, b),
                        " use ", communicator, " without an order between them"));
        break;
      }
    }
  }
}

}  // namespace

std::vector<std::string> check_collectives(const std::vector<RankTrace>& ranks) {
  Defects defects;
  std::map<std::string, std::pair<int, std::vector<Part>>> first;  // communicator -> (rank, its sequence)
  for (const RankTrace& rank : ranks) {
    std::map<std::string, std::vector<Part>> parts;
    for (std::size_t i = 0; i < rank.trace->items.size(); ++i) {
      const CollectiveNote& note = rank.trace->items[i].booking.collective;
      if (note.kind != CollectiveKind::none) parts[note.communicator].push_back({static_cast<int>(i), &note});
    }
    check_order_within(rank, parts, defects);
    for (auto& [communicator, list] : parts) {
      std::erase_if(list, [](const Part& part) { return point_to_point(part.note->kind); });
      const auto [it, added] = first.try_emplace(communicator, rank.rank, list);
      if (added) continue;
      const auto& [other, expected] = it->second;
      const std::size_t count = std::min(list.size(), expected.size());
      std::size_t i = 0;
      while (i < count && list[i].note->kind == expected[i].note->kind && list[i].note->bytes == expected[i].note->bytes) {
        ++i;
      }
      if (i == list.size() && i == expected.size()) continue;
      defects.add(cat("collective ", i, " of ", communicator, ": rank ", other, " asks for ",
                      i < expected.size() ? describe(*expected[i].note) : "nothing", ", rank ", rank.rank, " for ",
                      i < list.size() ? describe(*list[i].note) : "nothing"));
    }
  }
  Simulation(ranks).run(defects);
  return defects.take();
}

}  // namespace hawser::program
