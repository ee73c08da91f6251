#include "ops/attention/alibi.h"

#include <bit>
#include <cmath>

#include "base/error.h"

namespace hawser::ops {

std::vector<float> alibi_slopes(std::int64_t heads) {
  HAWSER_CHECK(heads > 0, "ALiBi slopes of ", heads, " heads");
  const auto power = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(heads)));
  std::vector<float> out;
  for (std::int64_t h = 0; h < heads; ++h) {
    const double exponent =
        h < power ? -8.0 * static_cast<double>(h + 1) : -4.0 * static_cast<double>(2 * (h - power) + 1);
    out.push_back(static_cast<float>(std::exp2(exponent / static_cast<double>(power))));
  }
  return out;
}

}  // namespace hawser::ops
