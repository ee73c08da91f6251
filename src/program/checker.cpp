#include "program/checker.h"

#include <algorithm>
#include <span>

#include "device/device.h"
#include "program/arena_owners.h"
#include "program/defects.h"
#include "program/order.h"
#include "program/written.h"

namespace hawser::program {

namespace {

struct Use {
  int item;
  int access;  // index in the item's accesses
};

// The uses of every buffer, in list order.
class Uses {
 public:
  // `buffer_of`: by access of the trace, in its order; -1: none.
  Uses(const Trace& trace, const std::vector<int>& buffer_of, std::size_t buffers) : begin_(buffers + 1, 0) {
    for (const int b : buffer_of) {
      if (b >= 0) ++begin_[static_cast<std::size_t>(b) + 1];
    }
    for (std::size_t b = 0; b < buffers; ++b) begin_[b + 1] += begin_[b];
    uses_.resize(begin_.back());
    std::vector<std::size_t> next(begin_.begin(), begin_.end() - 1);
    std::size_t at = 0;
    for (std::size_t i = 0; i < trace.items.size(); ++i) {
      const auto accesses = static_cast<int>(trace.items[i].record.accesses.size());
      for (int a = 0; a < accesses; ++a) {
        const int b = buffer_of[at++];
        if (b >= 0) uses_[next[static_cast<std::size_t>(b)]++] = {static_cast<int>(i), a};
      }
    }
  }
  std::span<const Use> of(std::size_t buffer) const {
    return std::span(uses_).subspan(begin_[buffer], begin_[buffer + 1] - begin_[buffer]);
  }

 private:
  std::vector<std::size_t> begin_;  // by buffer
  std::vector<Use> uses_;
};

// The uses of one buffer, in list order: finds unordered conflicting accesses, and reads of bytes that were not
// written.
class BufferCheck {
 public:
  BufferCheck(const Trace& trace, const Order& order, const Buffer& buffer, std::span<const Use> uses, Defects& defects)
      : trace_(trace), order_(order), buffer_(buffer), uses_(uses), defects_(defects) {}

  // On each other stream, only uses after the last one that is over when this use starts can race with it.
  void races() {
    std::vector<std::vector<const Use*>> streams(trace_.streams.size());
    for (const Use& use : uses_) {
      const std::size_t own = stream(use);
      for (std::size_t s = 0; s < streams.size(); ++s) {
        if (s == own) continue;
        for (auto other = streams[s].rbegin(); other != streams[s].rend(); ++other) {
          if (order_.before((*other)->item, use.item)) break;
          const Access &a = access(use), &b = access(**other);
          if ((!a.write && !b.write) || !overlap(a, b)) continue;
          defects_.add(cat("race on ", buffer_.name, ": ", describe(trace_, (*other)->item), " and ",
                           describe(trace_, use.item), " are not ordered"));
          return;
        }
      }
      streams[own].push_back(&use);
    }
  }

  // An item's own writes do not count for its reads.
  void unwritten_reads() {
    Written written(buffer_.address);
    for (std::size_t i = 0; i < uses_.size();) {
      std::size_t end = i;
      for (; end < uses_.size() && uses_[end].item == uses_[i].item; ++end) {
        const Access& read = access(uses_[end]);
        if (read.write || written.covers(read)) continue;
        defects_.add(cat(buffer_.name, " is read before it is written: ", describe(trace_, uses_[end].item)));
        return;
      }
      for (; i < end; ++i) {
        if (access(uses_[i]).write) written.add(access(uses_[i]));
      }
    }
  }

 private:
  std::size_t stream(const Use& use) const {
    return static_cast<std::size_t>(trace_.items[static_cast<std::size_t>(use.item)].stream);
  }
  const Access& access(const Use& use) const {
    return trace_.items[static_cast<std::size_t>(use.item)].record.accesses[static_cast<std::size_t>(use.access)];
  }

  const Trace& trace_;
  const Order& order_;
  const Buffer& buffer_;
  std::span<const Use> uses_;
  Defects& defects_;
};

void check_offsets(const Lifetimes& lifetimes, const std::vector<Buffer>& buffers, const Placement& placement,
                   Space space, Defects& defects) {
  for (std::size_t b = 0; b < buffers.size(); ++b) {
    const std::int64_t begin = placement.offsets[b];
    if (begin >= 0) {
      if (begin % Device::kAlignment != 0) defects.add(cat(buffers[b].name, " is not aligned"));
      if (begin + buffers[b].bytes > placement.bytes) defects.add(cat(buffers[b].name, " ends after the arena's end"));
    } else if (lifetimes.used(static_cast<int>(b)) && buffers[b].space == space) {
      defects.add(cat(buffers[b].name, " is used but not placed"));
    }
  }
}

// The order of buffers in time is transitive, and of two ordered buffers the earlier one is accessed first in the
// trace. So all buffers at a byte are ordered if each is ordered with the one that had the byte before it.
void check_sharing(const Lifetimes& lifetimes, const std::vector<Buffer>& buffers, const Placement& placement,
                   Defects& defects) {
  std::vector<int> by_first;
  for (int b = 0; b < static_cast<int>(buffers.size()); ++b) {
    const auto index = static_cast<std::size_t>(b);
    if (lifetimes.used(b) && placement.offsets[index] >= 0 && buffers[index].bytes > 0) by_first.push_back(b);
  }
  std::stable_sort(by_first.begin(), by_first.end(),
                   [&](int a, int b) { return lifetimes.first_item(a) < lifetimes.first_item(b); });
  ArenaOwners owners;
  for (const int b : by_first) {
    if (defects.full()) return;
    const auto index = static_cast<std::size_t>(b);
    const std::int64_t begin = placement.offsets[index];
    owners.take(begin, begin + buffers[index].bytes, b, [&](int earlier) {
      if (lifetimes.before(earlier, b)) return;
      defects.add(cat(buffers[static_cast<std::size_t>(earlier)].name, " and ", buffers[index].name,
                      " share bytes, but their accesses are not ordered"));
    });
  }
}

}  // namespace

std::vector<std::string> check_memory(const RankTrace& rank) {
  const Trace& trace = *rank.trace;
  const std::vector<Buffer>& buffers = *rank.buffers;
  const Order order(trace);
  const BufferIndex index(buffers);
  Defects defects;

  bool inside = true;
  std::vector<int> buffer_of;  // by access
  for (std::size_t i = 0; i < trace.items.size(); ++i) {
    for (const Access& access : trace.items[i].record.accesses) {
      buffer_of.push_back(-1);
      if (access.row_bytes == 0 || access.rows == 0) continue;
      const std::optional<int> buffer = index.find(access.address);
      if (!buffer) {
        defects.add(cat("access outside every buffer: ", describe(trace, static_cast<int>(i))));
        continue;
      }
      buffer_of.back() = *buffer;
      const Buffer& b = buffers[static_cast<std::size_t>(*buffer)];
      if (access.end() <= b.address + static_cast<std::uint64_t>(b.bytes)) continue;
      defects.add(cat(b.name, " is accessed past its end: ", describe(trace, static_cast<int>(i))));
      inside = false;
    }
  }
  const Uses uses(trace, buffer_of, buffers.size());
  for (std::size_t b = 0; b < buffers.size() && !defects.full(); ++b) {
    BufferCheck check(trace, order, buffers[b], uses.of(b), defects);
    check.races();
    if (!is_persistent(buffers[b].space)) check.unwritten_reads();
  }
  if (rank.placement != nullptr && inside) {
    const Lifetimes lifetimes(trace, order, buffers);
    for (const auto& [space, placement] :
         {std::pair{Space::device, rank.placement}, std::pair{Space::host, rank.host_placement}}) {
      if (placement == nullptr) continue;
      check_offsets(lifetimes, buffers, *placement, space, defects);
      check_sharing(lifetimes, buffers, *placement, defects);
    }
  }
  return defects.take();
}

}  // namespace hawser::program
