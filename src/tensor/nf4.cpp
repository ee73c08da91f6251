#include "tensor/nf4.h"

#include <algorithm>
#include <cmath>

namespace hawser {

std::vector<Nf4Group> nf4_groups(std::span<const float> scales) {
  double sum = 0;
  for (const float scale : scales) sum += static_cast<double>(scale);
  const auto mean = static_cast<float>(sum / static_cast<double>(scales.size()));
  std::vector<Nf4Group> groups;
  for (std::size_t begin = 0; begin < scales.size(); begin += kNf4GroupBlocks) {
    Nf4Group& group = groups.emplace_back(Nf4Group{.scale = 0, .mean = mean});
    const std::size_t end = std::min<std::size_t>(scales.size(), begin + kNf4GroupBlocks);
    for (std::size_t i = begin; i < end; ++i) group.scale = std::max(group.scale, std::abs(scales[i] - mean));
  }
  return groups;
}

}  // namespace hawser
