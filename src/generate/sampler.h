// From logits to a token.
//
// temperature 0: the token with the largest logit, of equal ones the lowest id. Above 0, in the order of transformers:
//   1. temperature: s[i] = logit[i] / temperature
//   2. top_k > 0:   tokens with s below the k-th largest are left out (all that equal it stay)
//   3. top_p < 1:   p = softmax of what is left, largest first, of equal ones the lowest id; a token is left out where
//                   the sum of those before it is top_p or more. One stays at least.
//   4. a draw from the softmax of what is left.
// The draw's number comes from (seed, number of the prompt, position of the token in its sequence), by Philox: neither
// the other prompts nor the batch change it. Sums are float64.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/philox.h"

namespace hawser::generate {

struct Sampling {
  double temperature = 0;
  std::int64_t top_k = 0;  // 0: all
  double top_p = 1;
  std::uint64_t seed = 0;
};

class Sampler {
 public:
  explicit Sampler(const Sampling& sampling) : sampling_(sampling), random_(sampling.seed, "generate") {}

  // UserError where no logit is a finite number.
  std::int32_t pick(std::span<const float> logits, std::int64_t prompt, std::int64_t position);

  struct Candidate {
    std::int32_t id = 0;
    double weight = 0;  // exp(s - largest s)
  };
  // What is left after the filters (temperature above 0); valid until the next call.
  const std::vector<Candidate>& candidates(std::span<const float> logits);

 private:
  Sampling sampling_;
  RandomStream random_;
  std::vector<float> values_;
  std::vector<Candidate> candidates_;
};

}  // namespace hawser::generate
