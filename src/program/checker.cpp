#include "program/checker.h"

#include <algorithm>

#include "device/device.h"
#include "program/defects.h"
#include "program/order.h"
#include "program/written.h"

namespace hawser::program {

namespace {

struct Use {
  int item;
  Access access;
};

// The uses of one buffer, in list order: finds unordered conflicting accesses, and reads of bytes that were not
// written.
class BufferCheck {
 public:
  BufferCheck(const Trace& trace, const Order& order, const Buffer& buffer, const std::vector<Use>& uses,
              Defects& defects)
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
          if (!use.access.write && !(*other)->access.write) continue;
          if (!overlap(use.access, (*other)->access)) continue;
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
        const Use& use = uses_[end];
        if (use.access.write || written.covers(use.access)) continue;
        defects_.add(cat(buffer_.name, " is read before it is written: ", describe(trace_, use.item)));
        return;
      }
      for (; i < end; ++i) {
        if (uses_[i].access.write) written.add(uses_[i].access);
      }
    }
  }

 private:
  std::size_t stream(const Use& use) const {
    return static_cast<std::size_t>(trace_.items[static_cast<std::size_t>(use.item)].stream);
  }

  const Trace& trace_;
  const Order& order_;
  const Buffer& buffer_;
  const std::vector<Use>& uses_;
  Defects& defects_;
};

void check_placement(const Trace& trace, const Order& order, const std::vector<Buffer>& buffers,
                     const Placement& placement, Defects& defects) {
  const Lifetimes lifetimes(trace, order, buffers);
  const auto name = [&](int b) -> const std::string& { return buffers[static_cast<std::size_t>(b)].name; };
  const auto begin = [&](int b) { return placement.offsets[static_cast<std::size_t>(b)]; };
  const auto end = [&](int b) { return begin(b) + buffers[static_cast<std::size_t>(b)].bytes; };
  std::vector<int> by_offset;
  for (int b = 0; b < static_cast<int>(buffers.size()); ++b) {
    if (begin(b) >= 0) {
      by_offset.push_back(b);
      if (begin(b) % Device::kAlignment != 0) defects.add(cat(name(b), " is not aligned"));
      if (end(b) > placement.bytes) defects.add(cat(name(b), " ends after the arena's end"));
    } else if (lifetimes.used(b) && buffers[static_cast<std::size_t>(b)].category != kPersistent) {
      defects.add(cat(name(b), " is used but not placed"));
    }
  }
  std::stable_sort(by_offset.begin(), by_offset.end(), [&](int a, int b) { return begin(a) < begin(b); });
  for (std::size_t i = 0; i < by_offset.size() && !defects.full(); ++i) {
    for (std::size_t j = i + 1; j < by_offset.size() && begin(by_offset[j]) < end(by_offset[i]); ++j) {
      if (lifetimes.disjoint(by_offset[i], by_offset[j])) continue;
      defects.add(
          cat(name(by_offset[i]), " and ", name(by_offset[j]), " share bytes, but their accesses are not ordered"));
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

  bool inside = true;
  std::vector<std::vector<Use>> uses(buffers.size());
  for (std::size_t i = 0; i < trace.items.size(); ++i) {
    for (const Access& access : trace.items[i].record.accesses) {
      if (access.row_bytes == 0 || access.rows == 0) continue;
      const int buffer = index.find(access.address);
      if (buffer < 0) {
        defects.add(cat("access outside every buffer: ", describe(trace, static_cast<int>(i))));
        continue;
      }
      const Buffer& b = buffers[static_cast<std::size_t>(buffer)];
      if (access.end() > b.address + static_cast<std::uint64_t>(b.bytes)) {
        defects.add(cat(b.name, " is accessed past its end: ", describe(trace, static_cast<int>(i))));
        inside = false;
      }
      uses[static_cast<std::size_t>(buffer)].push_back({static_cast<int>(i), access});
    }
  }
  for (std::size_t b = 0; b < buffers.size() && !defects.full(); ++b) {
    BufferCheck check(trace, order, buffers[b], uses[b], defects);
    check.races();
    if (buffers[b].category != kPersistent) check.unwritten_reads();
  }
  if (rank.placement != nullptr && inside) check_placement(trace, order, buffers, *rank.placement, defects);
  return defects.take();
}

}  // namespace hawser::program
