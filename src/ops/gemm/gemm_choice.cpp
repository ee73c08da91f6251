#include "ops/gemm/gemm_choice.h"

#include <algorithm>
#include <vector>

namespace hawser::ops {

namespace {

constexpr float kMargin = 0.995f, kLong = 0.2f;
constexpr std::size_t kScreened = 6, kFinalists = 3;  // the library's first choice included

// A duration of runs before the clock is taken as settled, and of those that are measured; in ms.
struct Duration {
  float settle = 0, measure = 0;
};
constexpr Duration kShort{12, 20}, kSustained{150, 200};

using Indices = std::vector<std::size_t>;
using Times = std::vector<float>;  // in the order of Indices

// The algorithms take turns, so that clock drift affects all alike.
Times medians(const Indices& algorithms, int rounds, const GemmTimer& timer) {
  std::vector<Times> times(algorithms.size());
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < algorithms.size(); ++i) times[i].push_back(timer.once(algorithms[i]));
  }
  Times out;
  for (Times& each : times) {
    std::nth_element(each.begin(), each.begin() + rounds / 2, each.end());
    out.push_back(each[static_cast<std::size_t>(rounds / 2)]);
  }
  return out;
}

Times sustained(const Indices& algorithms, Duration duration, float once_ms, const GemmTimer& timer) {
  const auto runs = [&](float ms) { return std::max(1, static_cast<int>(ms / once_ms)); };
  Times out;
  for (const std::size_t algorithm : algorithms)
    out.push_back(timer.sustained(algorithm, runs(duration.settle), runs(duration.measure)));
  return out;
}

// The first algorithm and the fastest others.
Indices fastest(const Indices& algorithms, const Times& times, std::size_t count) {
  Indices order;
  for (std::size_t i = 1; i < algorithms.size(); ++i) order.push_back(i);
  std::ranges::stable_sort(order, [&](auto a, auto b) { return times[a] < times[b]; });
  Indices out{algorithms.front()};
  for (const std::size_t i : order) {
    if (out.size() < count) out.push_back(algorithms[i]);
  }
  return out;
}

std::size_t winner(const Indices& algorithms, const Times& one, const Times& two) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < algorithms.size(); ++i) {
    const bool wins = one[i] < kMargin * one[0] && two[i] < kMargin * two[0];
    if (wins && (best == 0 || one[i] + two[i] < one[best] + two[best])) best = i;
  }
  return algorithms[best];
}

}  // namespace

std::size_t choose_gemm(std::size_t count, const GemmTimer& timer) {
  if (count == 1) return 0;
  Indices all;
  for (std::size_t i = 0; i < count; ++i) all.push_back(i);
  timer.once(0);
  const Times single = medians(all, 3, timer);
  const Indices screened = fastest(all, single, kScreened);
  const float once_ms = single.front();
  if (once_ms < kLong) {
    const int rounds = std::clamp(static_cast<int>(60.0f / once_ms), 7, 21);
    const Times one = medians(screened, rounds, timer), two = medians(screened, rounds, timer);
    return winner(screened, one, two);
  }
  sustained({0}, {0, 5 * kShort.measure}, once_ms, timer);
  Times quick = sustained(screened, kShort, once_ms, timer);
  const Times again = sustained(screened, kShort, once_ms, timer);
  for (std::size_t i = 0; i < quick.size(); ++i) quick[i] = std::min(quick[i], again[i]);
  const Indices finalists = fastest(screened, quick, kFinalists);
  const Times one = sustained(finalists, kSustained, once_ms, timer);
  const Times two = sustained(finalists, kSustained, once_ms, timer);
  return winner(finalists, one, two);
}

}  // namespace hawser::ops
