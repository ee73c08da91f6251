#include "program/order.h"

#include <algorithm>

#include "base/error.h"

namespace hawser::program {

Order::Order(const Trace& trace) : streams_(static_cast<int>(trace.streams.size())) {
  const std::size_t width = static_cast<std::size_t>(streams_), count = trace.items.size();
  stream_.resize(count);
  position_.resize(count);
  clock_.resize(count * width);
  std::vector<int> length(width, 0);                                     // items of each stream so far
  std::vector<std::vector<int>> now(width, std::vector<int>(width, 0));  // by stream: its current clock
  for (std::size_t i = 0; i < count; ++i) {
    const TraceItem& item = trace.items[i];
    const auto s = static_cast<std::size_t>(item.stream);
    if (item.kind == TraceItem::Kind::wait) {
      HAWSER_CHECK(item.target >= 0 && static_cast<std::size_t>(item.target) < i, "item ", i, " waits for ",
                   item.target);
      const auto target = static_cast<std::size_t>(item.target);
      for (std::size_t t = 0; t < width; ++t) now[s][t] = std::max(now[s][t], clock_[target * width + t]);
      auto& own = now[s][static_cast<std::size_t>(stream_[target])];
      own = std::max(own, position_[target]);
    }
    stream_[i] = item.stream;
    position_[i] = ++length[s];
    std::copy(now[s].begin(), now[s].end(), clock_.begin() + static_cast<std::ptrdiff_t>(i * width));
    now[s][s] = position_[i];  // the next item of the stream starts when this one is over
  }
}

}  // namespace hawser::program
