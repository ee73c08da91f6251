#include "generate/token_sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "base/testing/test_paths.h"

namespace hawser::generate {
namespace token_sampler_test {

std::vector<float> some_logits(std::size_t count, std::uint64_t seed, double scale = 2) {
  const RandomStream random(seed, "logits");
  std::vector<float> out;
  for (std::size_t i = 0; i < count; ++i) out.push_back(static_cast<float>(scale * random.normal(i)));
  return out;
}

// The filters as described in sampler.h, applied one after the other to all tokens; probabilities, 0 if removed.
std::vector<double> reference(const std::vector<float>& logits, const Sampling& sampling) {
  const std::size_t n = logits.size();
  std::vector<double> s(n);
  for (std::size_t i = 0; i < n; ++i) s[i] = static_cast<double>(logits[i]) / sampling.temperature;
  const double none = -std::numeric_limits<double>::infinity();
  if (sampling.top_k) {
    std::vector<double> sorted = s;
    std::sort(sorted.rbegin(), sorted.rend());
    const double min = sorted[std::min<std::size_t>(static_cast<std::size_t>(*sampling.top_k), n) - 1];
    for (double& x : s) x = x < min ? none : x;
  }
  const auto softmax = [&] {
    std::vector<double> p(n);
    const double max = *std::max_element(s.begin(), s.end());
    for (std::size_t i = 0; i < n; ++i) p[i] = std::exp(s[i] - max);
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& x : p) x /= sum;
    return p;
  };
  if (sampling.top_p < 1) {
    const std::vector<double> p = softmax();
    std::vector<std::size_t> order(n);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return p[a] > p[b]; });
    double before = 0;
    for (std::size_t rank = 0; rank < n; ++rank) {
      if (rank > 0 && before >= sampling.top_p) s[order[rank]] = none;
      before += p[order[rank]];
    }
  }
  return softmax();
}

std::vector<double> probabilities(const std::vector<float>& logits, const Sampling& sampling) {
  Sampler sampler(sampling);
  std::vector<double> p(logits.size());
  double sum = 0;
  for (const auto& candidate : sampler.candidates(logits)) sum += candidate.weight;
  for (const auto& candidate : sampler.candidates(logits)) {
    p[static_cast<std::size_t>(candidate.id)] = candidate.weight / sum;
  }
  return p;
}

TEST(Sampler, FiltersAgreeWithAPlainReference) {
  int cases = 0;
  for (const std::size_t count : {std::size_t{1}, std::size_t{2}, std::size_t{50}, std::size_t{3000}}) {
    for (const double temperature : {0.3, 1.0, 2.5}) {
      for (const std::optional<std::int64_t> top_k :
           std::vector<std::optional<std::int64_t>>{{}, 1, 2, 40, 2000, 5000}) {
        for (const double top_p : {1.0, 0.999, 0.9, 0.5, 1e-6}) {
          std::vector<float> logits = some_logits(count, static_cast<std::uint64_t>(++cases));
          for (std::size_t i = 0; i + 2 < count; i += 7) logits[i + 2] = logits[i];  // equal ones
          const Sampling sampling{.temperature = temperature, .top_k = top_k, .top_p = top_p};
          const std::vector<double> expected = reference(logits, sampling), got = probabilities(logits, sampling);
          for (std::size_t i = 0; i < count; ++i) {
            ASSERT_NEAR(got[i], expected[i], 1e-12)
                << "token " << i << " of " << count << ", temperature " << temperature << ", top-k "
                << top_k.value_or(0) << ", top-p " << top_p;
          }
        }
      }
    }
  }
}

TEST(Sampler, FiltersAndTheirOrderAgreeWithTransformers) {
  std::ifstream file(std::filesystem::path(testing::kSourceFolder) / "tests/golden/generations.json");
  const nlohmann::json golden = nlohmann::json::parse(file)["filters"];
  const auto logits = golden["logits"].get<std::vector<float>>();
  int together = 0;
  for (const nlohmann::json& entry : golden["cases"]) {
    Sampling sampling{.temperature = entry["temperature"], .top_p = entry.value("top_p", 1.0)};
    if (entry.contains("top_k")) sampling.top_k = entry["top_k"].get<std::int64_t>();
    const auto expected = entry["probabilities"].get<std::vector<double>>();
    const std::vector<double> got = probabilities(logits, sampling);
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-7) << entry.dump();
    together += sampling.top_k && sampling.top_p < 1 ? 1 : 0;
  }
  EXPECT_GE(together, 2);
}

// Chi-squared test. The sum over tokens of (seen - expected)^2 / expected has mean n - 1 and variance 2 (n - 1).
TEST(Sampler, SamplesFollowTheDistribution) {
  for (const Sampling& sampling : {Sampling{.temperature = 1.0, .seed = 3}, Sampling{.temperature = 0.6, .seed = 4},
                                   Sampling{.temperature = 1.3, .top_k = 20, .top_p = 0.9, .seed = 5}}) {
    const std::vector<float> logits = some_logits(30, 17, 1.0);
    const std::vector<double> expected = probabilities(logits, sampling);
    Sampler sampler(sampling);
    constexpr int kSamples = 200000;
    std::vector<int> seen(logits.size());
    for (int draw = 0; draw < kSamples; ++draw) {
      ++seen[static_cast<std::size_t>(sampler.pick(logits, draw % 7, draw / 7))];
    }
    double chi = 0;
    int kept = 0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      if (expected[i] == 0) {
        EXPECT_EQ(seen[i], 0);
        continue;
      }
      ++kept;
      const double mean = expected[i] * kSamples;
      chi += (seen[i] - mean) * (seen[i] - mean) / mean;
    }
    ASSERT_GT(kept, 5);
    const double freedom = kept - 1;
    EXPECT_LT(std::abs(chi - freedom), 4 * std::sqrt(2 * freedom)) << chi << " of " << kept << " tokens";
  }
}

TEST(Sampler, ASampleDependsOnlyOnSeedPromptAndPosition) {
  const std::vector<float> logits = some_logits(1000, 1);
  const Sampling sampling{.temperature = 1.5, .seed = 9};
  std::map<std::pair<int, int>, std::int32_t> first;
  Sampler forward(sampling), backward(sampling);
  for (int prompt = 0; prompt < 10; ++prompt) {
    for (int position = 0; position < 10; ++position) {
      first[{prompt, position}] = forward.pick(logits, prompt, position);
    }
  }
  int same_prompt = 0, same_position = 0, same_seed = 0;
  Sampler other({.temperature = 1.5, .seed = 10});
  for (int position = 9; position >= 0; --position) {
    for (int prompt = 9; prompt >= 0; --prompt) {
      const std::int32_t id = backward.pick(logits, prompt, position);
      EXPECT_EQ(id, (first[{prompt, position}]));
      same_prompt += id == first[{prompt, (position + 1) % 10}] ? 1 : 0;
      same_position += id == first[{(prompt + 1) % 10, position}] ? 1 : 0;
      same_seed += id == other.pick(logits, prompt, position) ? 1 : 0;
    }
  }
  for (const int same : {same_prompt, same_position, same_seed}) EXPECT_LT(same, 30);
}

TEST(Sampler, ZeroIsGreedyAndTiesGoToTheLowestId) {
  Sampler sampler({});
  EXPECT_EQ(sampler.pick(std::vector<float>{1, 5, 2, 5}, 0, 0), 1);
  EXPECT_EQ(sampler.pick(std::vector<float>{-3}, 0, 0), 0);
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(sampler.pick(std::vector<float>{nan, -infinity, 2, 1}, 0, 0), 2);
  EXPECT_THROW(sampler.pick(std::vector<float>{nan, nan}, 0, 0), UserError);
  EXPECT_THROW(sampler.pick(std::vector<float>{1, infinity}, 0, 0), UserError);
  // A temperature near zero selects the same token, and logits far below have weight 0.
  Sampler cold({.temperature = 1e-3});
  EXPECT_EQ(cold.pick(std::vector<float>{1, 5, 2, -1e30F}, 0, 0), 1);
}

}  // namespace token_sampler_test
}  // namespace hawser::generate
