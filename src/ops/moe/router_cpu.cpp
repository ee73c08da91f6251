// Sums are in double: rows are short, and this backend is the reference of the others.
#include "ops/moe/router.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "ops/cpu/parallel.h"

namespace hawser::ops::cpu {

namespace {

// Rows of a piece: a thread must have enough work.
std::int64_t row_grain_of(std::int64_t experts) {
  return std::max<std::int64_t>(4, 2048 / experts);
}

// The softmax of one row. p[e] = exp(logits[e] - logsumexp).
struct Softmax {
  std::array<double, kMaxExperts> p;
  double logsumexp = 0;

  Softmax(const float* logits, std::int64_t experts) {
    double largest = logits[0], sum = 0;
    for (std::int64_t e = 1; e < experts; ++e) largest = std::max(largest, static_cast<double>(logits[e]));
    const auto count = static_cast<std::size_t>(experts);
    for (std::size_t e = 0; e < count; ++e) sum += p[e] = std::exp(static_cast<double>(logits[e]) - largest);
    for (std::size_t e = 0; e < count; ++e) p[e] /= sum;
    logsumexp = largest + std::log(sum);
  }
  double operator[](std::int64_t e) const { return p[static_cast<std::size_t>(e)]; }
};

// The `count` largest logits, largest first.
void choose(const float* logits, std::int64_t experts, std::int32_t* chosen, std::int64_t count) {
  std::array<bool, kMaxExperts> taken{};
  for (std::int64_t k = 0; k < count; ++k) {
    std::int64_t best = -1;
    for (std::int64_t e = 0; e < experts; ++e) {
      if (taken[static_cast<std::size_t>(e)]) continue;
      if (best < 0 || logits[e] > logits[best]) best = e;
    }
    taken[static_cast<std::size_t>(best)] = true;
    chosen[k] = static_cast<std::int32_t>(best);
  }
}

}  // namespace

void router_top_k(const RouterTopK& args) {
  const std::int64_t experts = args.logits.size(1), per_token = args.experts.size(1);
  const auto* const mask = args.mask.empty() ? nullptr : args.mask.data<std::int32_t>();
  parallel_pieces(args.logits.size(0), row_grain_of(experts), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      std::int32_t* const chosen = args.experts.data<std::int32_t>() + t * per_token;
      float* const weights = args.weights.data<float>() + t * per_token;
      if (mask != nullptr && mask[t] == 0) {
        std::fill_n(chosen, per_token, kNoExpert);
        std::fill_n(weights, per_token, 0.0f);
        continue;
      }
      const float* const logits = args.logits.data<float>() + t * experts;
      const Softmax p(logits, experts);
      choose(logits, experts, chosen, per_token);
      double sum = args.normalise ? 0 : 1;
      for (std::int64_t k = 0; args.normalise && k < per_token; ++k) sum += p[chosen[k]];
      for (std::int64_t k = 0; k < per_token; ++k) weights[k] = static_cast<float>(p[chosen[k]] / sum);
    }
  });
}

void router_statistics(const RouterStatistics& args) {
  const std::int64_t tokens = args.logits.size(0), experts = args.logits.size(1), per_token = args.experts.size(1);
  const std::int64_t size = router_statistics_size(experts);
  const std::int64_t blocks = router_statistics_workspace(tokens, experts) / (size * size_of(DType::f32));
  auto* const partials = reinterpret_cast<float*>(args.workspace.raw());
  parallel_items(blocks, [&](std::int64_t block) {
    std::array<double, router_statistics_size(kMaxExperts)> sums{};
    double* const counts = sums.data();
    double* const probabilities = counts + experts;
    for (std::int64_t t = block * tokens / blocks; t < (block + 1) * tokens / blocks; ++t) {
      const std::int32_t* const chosen = args.experts.data<std::int32_t>() + t * per_token;
      if (chosen[0] < 0) continue;
      for (std::int64_t k = 0; k < per_token; ++k) counts[chosen[k]] += 1;
      const Softmax p(args.logits.data<float>() + t * experts, experts);
      for (std::int64_t e = 0; e < experts; ++e) probabilities[e] += p[e];
      counts[2 * experts] += p.logsumexp * p.logsumexp;
      counts[2 * experts + 1] += 1;
    }
    for (std::int64_t i = 0; i < size; ++i) {
      partials[block * size + i] = static_cast<float>(sums[static_cast<std::size_t>(i)]);
    }
  });
  for (std::int64_t i = 0; i < size; ++i) {
    double sum = 0;
    for (std::int64_t block = 0; block < blocks; ++block) sum += partials[block * size + i];
    args.statistics.data<float>()[i] = static_cast<float>(sum);
  }
}

void router_loss(const RouterLoss& args) {
  const std::int64_t layers = args.statistics.size(0), size = args.statistics.size(1),
                     experts = experts_of_statistics(size);
  std::array<double, router_statistics_size(kMaxExperts)> sums{};
  for (std::int64_t l = 0; l < layers; ++l) {
    for (std::int64_t i = 0; i < size; ++i) {
      sums[static_cast<std::size_t>(i)] += args.statistics.data<float>()[l * size + i];
    }
  }
  const double* const counts = sums.data();
  const double n = counts[2 * experts + 1], inverse = n > 0 ? 1 / n : 0;
  const double scale = args.share * (args.scale.empty() ? 1.0 : *args.scale.data<float>());
  double balance = 0;
  for (std::int64_t e = 0; e < experts; ++e) balance += counts[e] * inverse * counts[experts + e] * inverse;
  balance *= static_cast<double>(experts);
  float& loss = *args.loss.data<float>();
  const double value =
      args.share * (args.balance_coefficient * balance + args.z_coefficient * counts[2 * experts] * inverse);
  loss = static_cast<float>(value + (args.accumulate ? static_cast<double>(loss) : 0.0));
  if (args.factors.empty()) return;
  float* factors = args.factors.data<float>();
  for (std::int64_t l = 0; l < layers; ++l) {
    for (std::int64_t e = 0; e < experts; ++e) {
      *factors++ = static_cast<float>(scale * args.balance_coefficient * static_cast<double>(experts) * counts[e] *
                                      inverse * inverse);
    }
    *factors++ = static_cast<float>(scale * args.z_coefficient * inverse);
  }
}

void router_top_k_backward(const RouterTopKBackward& args) {
  const std::int64_t experts = args.logits.size(1), per_token = args.experts.size(1);
  const float* const factors = args.factors.empty() ? nullptr : args.factors.data<float>();
  parallel_pieces(args.logits.size(0), row_grain_of(experts), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const std::int32_t* const chosen = args.experts.data<std::int32_t>() + t * per_token;
      const float* const weights = args.weights.data<float>() + t * per_token;
      const float* const dweights = args.dweights.data<float>() + t * per_token;
      float* const dlogits = args.dlogits.data<float>() + t * experts;
      if (chosen[0] < 0) {
        std::fill_n(dlogits, experts, 0.0f);
        continue;
      }
      const Softmax p(args.logits.data<float>() + t * experts, experts);
      std::array<double, kMaxExperts> dp, from_weights;  // gradients of p, and of the logits through the weights
      for (std::int64_t e = 0; e < experts; ++e) {
        dp[static_cast<std::size_t>(e)] = factors != nullptr ? factors[e] : 0.0;
        from_weights[static_cast<std::size_t>(e)] = 0;
      }
      double weighted = 0;
      for (std::int64_t k = 0; k < per_token; ++k) weighted += static_cast<double>(weights[k]) * dweights[k];
      for (std::int64_t k = 0; k < per_token; ++k) {
        const auto e = static_cast<std::size_t>(chosen[k]);
        if (args.normalise) {
          from_weights[e] = weights[k] * (dweights[k] - weighted);
        } else {
          dp[e] += dweights[k];
        }
      }
      double mean = 0;
      for (std::int64_t e = 0; e < experts; ++e) mean += p[e] * dp[static_cast<std::size_t>(e)];
      const double z = factors != nullptr ? 2 * factors[experts] * p.logsumexp : 0;
      for (std::int64_t e = 0; e < experts; ++e) {
        const auto i = static_cast<std::size_t>(e);
        dlogits[e] = static_cast<float>(p[e] * (dp[i] - mean + z) + from_weights[i]);
      }
    }
  });
}

}  // namespace hawser::ops::cpu
