// The checks across ranks: check_collectives.
#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <tuple>

#include "program/checker.h"
#include "program/conversation.h"
#include "program/defects.h"
#include "program/order.h"

namespace hawser::program {

namespace {

std::string describe(const CollectiveNote& note) {
  return cat(to_string(note.kind), " of ", note.bytes, " bytes on ", note.communicator,
             note.peer >= 0 ? cat(" with member ", note.peer) : "",
             note.source >= 0 ? cat(" and from member ", note.source) : "",
             note.label != 0 ? cat(", label ", note.label >> 32, ".", note.label & 0xffffffff) : "");
}

class Checks {
 public:
  Checks(const std::vector<RankTrace>& ranks, const Conversation& conversation)
      : ranks_(ranks), conversation_(conversation) {}

  // A member's own streams and events must fix the order in which it uses a communicator.
  void check_order(std::size_t r, Defects& defects) const {
    const Trace& trace = *ranks_[r].trace;
    const Order order(trace);
    std::map<int, int> last;  // communicator -> item
    std::set<int> reported;
    for (const Part& part : conversation_.parts(r)) {
      const auto [it, first] = last.try_emplace(part.communicator, part.item);
      if (!first && it->second != part.item && !order.before(it->second, part.item) &&
          reported.insert(part.communicator).second) {
        defects.add(cat("rank ", ranks_[r].rank, ": ", program::describe(trace, it->second), " and ",
                        program::describe(trace, part.item), " use ", part.note->communicator,
                        " without an order between them"));
      }
      it->second = part.item;
    }
  }

  // Every member of a communicator must call the same collectives as its first member.
  void check_sequences(Defects& defects) const {
    for (int c = 0; c < conversation_.communicators(); ++c) {
      const std::size_t first = conversation_.members(c).front();
      const std::vector<const CollectiveNote*> expected = sequence(first, c);
      for (const std::size_t r : conversation_.members(c)) {
        const std::vector<const CollectiveNote*> notes = sequence(r, c);
        const auto [a, b] = std::mismatch(expected.begin(), expected.end(), notes.begin(), notes.end(),
                                          [](const CollectiveNote* x, const CollectiveNote* y) {
                                            return x->kind == y->kind && x->bytes == y->bytes && x->peer == y->peer &&
                                                   x->label == y->label;
                                          });
        if (a == expected.end() && b == notes.end()) continue;
        defects.add(cat("collective ", a - expected.begin(), " of ", name(c), ": rank ", ranks_[first].rank, " calls ",
                        a != expected.end() ? describe(**a) : "nothing", ", rank ", ranks_[r].rank, " calls ",
                        b != notes.end() ? describe(**b) : "nothing"));
      }
    }
  }

  // The k-th send to a member must match that member's k-th receive from this rank.
  void check_pairs(Defects& defects) const {
    using Key = std::tuple<int, int, int, int>;  // communicator, sender, receiver, number
    std::map<Key, std::pair<const CollectiveNote*, const CollectiveNote*>> pairs;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      for (const Part& part : conversation_.parts(r)) {
        if (part.partner < 0) continue;
        const int own = static_cast<int>(r);
        if (part.role == Part::Role::send) {
          pairs[{part.communicator, own, part.partner, part.number}].first = part.note;
        } else {
          pairs[{part.communicator, part.partner, own, part.number}].second = part.note;
        }
      }
    }
    std::set<std::tuple<int, int, int>> reported;  // one line per pair of members
    for (const auto& [key, pair] : pairs) {
      const auto& [communicator, from, to, number] = key;
      const auto& [send, receive] = pair;
      const bool both = send != nullptr && receive != nullptr;
      if (both && send->bytes == receive->bytes && send->label == receive->label) continue;
      if (!reported.insert({communicator, from, to}).second) continue;
      defects.add(cat("message ", number, " from rank ", ranks_[static_cast<std::size_t>(from)].rank, " to rank ",
                      ranks_[static_cast<std::size_t>(to)].rank, ": ",
                      send != nullptr ? describe(*send) : "nothing is sent", ", ",
                      receive != nullptr ? describe(*receive) : "nothing is received"));
    }
  }

 private:
  const std::string& name(int communicator) const {
    for (const Part& part : conversation_.parts(conversation_.members(communicator).front())) {
      if (part.communicator == communicator) return part.note->communicator;
    }
    static const std::string none;
    return none;
  }
  std::vector<const CollectiveNote*> sequence(std::size_t rank, int communicator) const {
    std::vector<const CollectiveNote*> out;
    for (const Part& part : conversation_.parts(rank)) {
      const bool collective = part.role == Part::Role::collective;
      if (part.communicator == communicator && collective) out.push_back(part.note);
    }
    return out;
  }

  const std::vector<RankTrace>& ranks_;
  const Conversation& conversation_;
};

// Runs the streams of all ranks as queues until all are empty or none can continue.
class Simulation {
 public:
  Simulation(const std::vector<RankTrace>& ranks, const Conversation& conversation)
      : ranks_(ranks), conversation_(conversation) {
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      const auto& items = ranks[r].trace->items;
      RankState state;
      state.done.assign(items.size(), false);
      state.parts.resize(items.size());
      state.queues.resize(ranks[r].trace->streams.size());
      for (std::size_t i = 0; i < items.size(); ++i) {
        state.queues[static_cast<std::size_t>(items[i].stream)].push_back(static_cast<int>(i));
      }
      for (const Part& part : conversation.parts(r)) {
        const bool alone =
            part.role == Part::Role::collective ? conversation.members(part.communicator).size() < 2 : part.partner < 0;
        if (!alone) state.parts[static_cast<std::size_t>(part.item)].push_back(&part);
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
        const TraceItem& it = item_of(r, item);
        defects.add(
            cat("deadlock: rank ", ranks_[r].rank, ", stream ", ranks_[r].trace->streams[s], " waits for ",
                it.kind == TraceItem::Kind::wait ? cat("an event of item ", it.target) : describe(it.record.collective),
                " (instruction ", it.instruction, ", item ", item, ")"));
      }
    }
  }

 private:
  struct RankState {
    std::vector<bool> done;
    std::vector<std::vector<const Part*>> parts;  // by item: those that wait for another rank and have not met it
    std::vector<std::deque<int>> queues;
  };
  struct Head {
    std::size_t rank, stream;
  };
  const TraceItem& item_of(std::size_t r, int item) const {
    return ranks_[r].trace->items[static_cast<std::size_t>(item)];
  }

  // Finishes every queue head that can finish; true if there was one, or if parts have met.
  bool step() {
    bool moved = false;
    std::map<int, std::vector<std::pair<Head, const Part*>>> meetings;
    for (std::size_t r = 0; r < states_.size(); ++r) {
      for (std::size_t s = 0; s < states_[r].queues.size(); ++s) {
        auto& queue = states_[r].queues[s];
        for (; !queue.empty(); finish({r, s}), moved = true) {
          const TraceItem& item = item_of(r, queue.front());
          if (item.kind == TraceItem::Kind::wait && !states_[r].done[static_cast<std::size_t>(item.target)]) break;
          const auto& parts = states_[r].parts[static_cast<std::size_t>(queue.front())];
          if (parts.empty()) continue;
          for (const Part* part : parts) meetings[part->meeting].push_back({{r, s}, part});
          break;
        }
      }
    }
    for (const auto& [meeting, heads] : meetings) {
      if (static_cast<int>(heads.size()) < conversation_.parts_of_meeting(meeting)) continue;
      for (const auto& [head, part] : heads) {
        std::erase(states_[head.rank].parts[static_cast<std::size_t>(part->item)], part);
      }
      moved = true;
    }
    return moved;
  }

  void finish(const Head& head) {
    auto& queue = states_[head.rank].queues[head.stream];
    states_[head.rank].done[static_cast<std::size_t>(queue.front())] = true;
    queue.pop_front();
  }

  const std::vector<RankTrace>& ranks_;
  const Conversation& conversation_;
  std::vector<RankState> states_;
};

}  // namespace

std::vector<std::string> check_collectives(const std::vector<RankTrace>& ranks) {
  Defects defects;
  const Conversation conversation(ranks);
  const Checks checks(ranks, conversation);
  for (std::size_t r = 0; r < ranks.size(); ++r) checks.check_order(r, defects);
  checks.check_sequences(defects);
  checks.check_pairs(defects);
  Simulation(ranks, conversation).run(defects);
  return defects.take();
}

}  // namespace hawser::program
