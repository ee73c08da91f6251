// `Mixture`: which data set each sequence of a run is from, and which of its sequences it is.
//
//   sets of 4 and 100 sequences, of which the first has a share of 1/4:
//   run      0    1    2    3    4    5    6    7    8  ...
//   first         f0                  f1                     f is the first set's own order
//   second   s0        s1   s2   s3        s4   s5   s6
//
// After any number of sequences, each set has its share of them to within one or two sequences. A set is read in its
// own endless order of the seed (sequence_order.h), all of it once an epoch of its own: another share, or another set
// beside it, changes when its sequences come, not their order.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

namespace hawser::batches {

class Mixture {
 public:
  // Shares of the sequences, which sum to 1, from a sequence of the run on: a resumed run may have others.
  struct Shares {
    std::int64_t from = 0;
    std::vector<double> of_sets;

    bool operator==(const Shares&) const = default;
  };

  // `sizes`: sequences of each set. `history`: the first is from 0, the others in order.
  Mixture(std::vector<std::int64_t> sizes, std::vector<Shares> history, std::uint64_t seed);

  // Index of the run's sequence `number` in the sets behind each other. Thread-safe; O(1) for numbers seen before, and
  // O(sets) for each new one.
  std::int64_t at(std::int64_t number) const;
  // Sequences of each set among the first `number` ones.
  std::vector<std::int64_t> counts(std::int64_t number) const;

 private:
  static constexpr std::int64_t kMarked = 1024;  // sequences from one mark to the next

  void extend(std::int64_t number) const;

  std::vector<std::int64_t> sizes_, first_;  // first_: index of each set's first sequence
  std::vector<Shares> history_;
  std::uint64_t seed_;

  mutable std::mutex mutex_;                              // guards what follows
  mutable std::vector<std::uint16_t> set_of_;             // by number
  mutable std::vector<std::vector<std::int64_t>> marks_;  // counts before each kMarked-th number
  mutable std::vector<std::int64_t> counts_;              // before set_of_.size()
  mutable std::vector<std::int64_t> counts_at_change_;    // before the sequence from which the shares are
  mutable std::size_t shares_ = 0;                        // index in history_
};

// Sequence number `index` of the endless stream of data set `set`. That of the first set is sequence_at.
std::int64_t sequence_of_set(std::uint64_t seed, std::size_t set, std::int64_t count, std::int64_t index);

}  // namespace hawser::batches
