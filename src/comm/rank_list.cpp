#include "comm/rank_list.h"

#include "base/cat.h"

namespace hawser::comm {

std::string rank_list(std::span<const int> ranks) {
  std::string out;
  for (std::size_t first = 0; first < ranks.size();) {
    std::size_t last = first;
    const int step = first + 1 < ranks.size() ? ranks[first + 1] - ranks[first] : 1;
    while (last + 1 < ranks.size() && ranks[last + 1] - ranks[last] == step) ++last;
    if (!out.empty()) out += ',';
    out += cat(ranks[first]);
    if (last > first) out += cat('-', ranks[last]);
    if (last > first && step != 1) out += cat(':', step);
    first = last + 1;
  }
  return out;
}

}  // namespace hawser::comm
