// `WittenBell`: a Witten-Bell interpolated bigram model of token ids. A language model that learned more than pairs has
// a lower loss.
//
//   P(w | h) = (c(h, w) + T(h) P(w)) / (c(h) + T(h))      T(h): number of distinct tokens seen after h
//   P(w)     = (c(w) + T / V) / (N + T)                   T: number of distinct tokens seen; V: vocabulary size
//
// c(h) counts h as a context (not at the end of a document); c(w) and N count every token. P(w | h) = P(w) where h was
// never a context, and 1 / V where nothing was seen. P sums to 1 over w for every h. Source: Witten and Bell, "The
// zero-frequency problem", IEEE Trans. Inf. Theory 37(4), 1991; Chen and Goodman, 1999.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace hawser::evaluate {

class WittenBell {
 public:
  explicit WittenBell(std::int64_t vocabulary);

  // Counts one document; pairs do not cross documents. InternalError for an id outside the vocabulary.
  void fit(std::span<const std::int32_t> ids);

  double probability(std::int32_t token) const;
  double probability(std::int32_t context, std::int32_t token) const;

  // Sum of -log P in nats over the tokens that a language model predicts: all but the first.
  struct Score {
    double nats = 0;
    std::int64_t tokens = 0;
    double mean() const { return tokens > 0 ? nats / static_cast<double>(tokens) : 0.0; }
    Score& operator+=(const Score& other) { return nats += other.nats, tokens += other.tokens, *this; }
  };
  Score score(std::span<const std::int32_t> ids) const;

 private:
  std::size_t place(std::int32_t token) const;  // index of the token; checks its range

  std::int64_t vocabulary_ = 0, tokens_ = 0, types_ = 0;
  std::vector<std::int64_t> counts_;                       // c(w)
  std::vector<std::int64_t> contexts_;                     // c(h)
  std::vector<std::int64_t> followers_;                    // T(h)
  std::unordered_map<std::uint64_t, std::int64_t> pairs_;  // c(h, w)
};

}  // namespace hawser::evaluate
