// `Sampler`: samples a token from logits.
//
// With temperature 0 it is the token with the largest logit; of equal ones, the lowest id.
// temperature > 0, in the order of transformers:
//   1. temperature: s[i] = logit[i] / temperature
//   2. top_k:       removes tokens with s below the k-th largest; keeps all that equal it
//   3. top_p < 1:   p = softmax over the remaining tokens, in descending order, equal ones by ascending id; removes
//                   tokens for which the sum of p before them is at least top_p; keeps at least one
//   4. samples from the softmax over the remaining tokens
// The random number is Philox of (seed, number of the prompt, position of the token in its sequence), so it does not
// depend on other prompts or the batch. Sums are float64.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/philox.h"

namespace hawser::generate {

struct Sampling {
  double temperature = 0;
  std::optional<std::int64_t> top_k;  // at least 1
  double top_p = 1;
  std::uint64_t seed = 0;
};

class Sampler {
 public:
  explicit Sampler(const Sampling& sampling) : sampling_(sampling), random_(sampling.seed, "generate") {}

  // UserError if no logit is finite.
  std::int32_t pick(std::span<const float> logits, std::int64_t prompt, std::int64_t position);

  struct Candidate {
    std::int32_t id = 0;
    double weight = 0;  // exp(s - largest s)
  };
  // The tokens that remain after the filters (temperature above 0); valid until the next call.
  const std::vector<Candidate>& candidates(std::span<const float> logits);

 private:
  Sampling sampling_;
  RandomStream random_;
  std::vector<float> values_;
  std::vector<Candidate> candidates_;
};

}  // namespace hawser::generate
