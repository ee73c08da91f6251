#include "batches/sequence_order.h"

#include <bit>
#include <utility>

#include "base/error.h"

namespace hawser::batches {
namespace {

constexpr int kRounds = 6;

}  // namespace

Shuffle::Shuffle(std::uint64_t seed, std::string_view name, std::int64_t count, std::int64_t epoch)
    : stream_(seed, name), count_(count), epoch_(epoch) {
  HAWSER_CHECK(count > 0, "nothing to shuffle");
  half_bits_ = (std::bit_width(static_cast<std::uint64_t>(count - 1)) + 1) / 2;
}

std::int64_t Shuffle::at(std::int64_t index) const {
  if (count_ == 1) return 0;
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  auto value = static_cast<std::uint64_t>(index);
  do {
    std::uint64_t left = value >> half_bits_, right = value & mask;
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      const std::uint64_t mixed = stream_.bits(right | round << 56, static_cast<std::uint64_t>(epoch_)) & mask;
      left = std::exchange(right, left ^ mixed);
    }
    value = left << half_bits_ | right;
  } while (value >= static_cast<std::uint64_t>(count_));
  return static_cast<std::int64_t>(value);
}

std::int64_t sequence_at(std::uint64_t seed, std::int64_t count, std::int64_t index) {
  return Shuffle(seed, "data/order", count, index / count).at(index % count);
}

}  // namespace hawser::batches
