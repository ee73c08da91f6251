#include "prepare/held_out.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace hawser::prepare {
namespace {

constexpr int kBucketBits = 16;

}  // namespace

HeldOut::HeldOut(std::int64_t documents, double fraction, std::uint64_t seed) : stream_(seed, "data/validation") {
  if (documents < 2 || fraction <= 0.0) return;
  any_ = true;
  auto wanted = std::clamp<std::int64_t>(std::llround(fraction * static_cast<double>(documents)), 1, documents - 1);
  // Finds the wanted-th smallest number in bounded memory: first its bucket, then its rank in the bucket.
  std::vector<std::int64_t> counts(std::size_t{1} << kBucketBits);
  for (std::int64_t i = 0; i < documents; ++i) ++counts[stream_.bits(i) >> (64 - kBucketBits)];
  std::uint64_t bucket = 0;
  while (wanted > counts[bucket]) wanted -= counts[bucket++];
  std::vector<std::uint64_t> inside;
  for (std::int64_t i = 0; i < documents; ++i) {
    const std::uint64_t number = stream_.bits(i);
    if (number >> (64 - kBucketBits) == bucket) inside.push_back(number);
  }
  std::nth_element(inside.begin(), inside.begin() + (wanted - 1), inside.end());
  max_ = inside[wanted - 1];
}

}  // namespace hawser::prepare
