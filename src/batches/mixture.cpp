#include "batches/mixture.h"

#include <limits>
#include <numeric>

#include "base/cat.h"
#include "base/error.h"
#include "batches/sequence_order.h"

namespace hawser::batches {

Mixture::Mixture(std::vector<std::int64_t> sizes, std::vector<Shares> history, std::uint64_t seed)
    : sizes_(std::move(sizes)),
      first_(sizes_.size()),
      history_(std::move(history)),
      seed_(seed),
      counts_(sizes_.size()),
      counts_at_change_(sizes_.size()) {
  HAWSER_CHECK(!sizes_.empty() && sizes_.size() < std::numeric_limits<std::uint16_t>::max(), sizes_.size(), " sets");
  HAWSER_CHECK(!history_.empty() && history_[0].from == 0, "no shares of the first sequence");
  for (const Shares& shares : history_) {
    HAWSER_CHECK(shares.of_sets.size() == sizes_.size(), shares.of_sets.size(), " shares of ", sizes_.size(), " sets");
  }
  std::exclusive_scan(sizes_.begin(), sizes_.end(), first_.begin(), std::int64_t{0});
}

// Decides about the sequences up to `number`. The next one is of the set that is furthest behind its share, since the
// shares last changed; the first of several.
void Mixture::extend(std::int64_t number) const {
  while (static_cast<std::int64_t>(set_of_.size()) <= number) {
    const auto next = static_cast<std::int64_t>(set_of_.size());
    if (shares_ + 1 < history_.size() && next >= history_[shares_ + 1].from) {
      ++shares_;
      counts_at_change_ = counts_;
    }
    if (next % kMarked == 0) marks_.push_back(counts_);
    const Shares& shares = history_[shares_];
    std::size_t chosen = 0;
    double furthest = -std::numeric_limits<double>::infinity();
    for (std::size_t set = 0; set < sizes_.size(); ++set) {
      const double wanted = shares.of_sets[set] * static_cast<double>(next + 1 - shares.from);
      const double behind = wanted - static_cast<double>(counts_[set] - counts_at_change_[set]);
      if (shares.of_sets[set] > 0 && behind > furthest) {
        furthest = behind;
        chosen = set;
      }
    }
    ++counts_[chosen];
    set_of_.push_back(static_cast<std::uint16_t>(chosen));
  }
}

std::vector<std::int64_t> Mixture::counts(std::int64_t number) const {
  const std::lock_guard lock(mutex_);
  extend(number);
  std::vector<std::int64_t> counts = marks_[static_cast<std::size_t>(number / kMarked)];
  for (std::int64_t n = number / kMarked * kMarked; n < number; ++n) ++counts[set_of_[static_cast<std::size_t>(n)]];
  return counts;
}

std::int64_t Mixture::at(std::int64_t number) const {
  const std::vector<std::int64_t> before = counts(number);
  std::unique_lock lock(mutex_);
  const std::size_t set = set_of_[static_cast<std::size_t>(number)];
  lock.unlock();
  return first_[set] + sequence_of_set(seed_, set, sizes_[set], before[set]);
}

std::int64_t sequence_of_set(std::uint64_t seed, std::size_t set, std::int64_t count, std::int64_t index) {
  if (set == 0) return sequence_at(seed, count, index);
  return Shuffle(seed, cat("data/order/", set), count, index / count).at(index % count);
}

}  // namespace hawser::batches
