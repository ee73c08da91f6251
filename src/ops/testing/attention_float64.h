// Attention's forward in float64, for tests: the formulas of ops/attention/attention.h, without its tiles.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

namespace hawser::ops::testing {

using Row = std::array<std::int64_t, 6>;  // a row of the segment table

struct AttentionSpace {
  std::int64_t query_heads, kv_heads, head_dim;
  std::vector<Row> segments;
  bool causal = true;
  std::int64_t window = 0;
  double scale = 1.0;
  double softcap = 0;
  std::vector<double> slopes = {};
  // The factor of the probability of a query row, a key row and a query head (dropout); empty: 1.
  std::function<double(std::int64_t row, std::int64_t key, std::int64_t head)> factor = {};

  // First element of a row's head in q, and in k or v of the query head's key-value head.
  std::size_t query_at(std::int64_t row, std::int64_t head) const {
    return static_cast<std::size_t>((row * query_heads + head) * head_dim);
  }
  std::size_t key_at(std::int64_t row, std::int64_t head) const {
    return static_cast<std::size_t>((row * kv_heads + head / (query_heads / kv_heads)) * head_dim);
  }
};

// Calls body(query row, key rows that it sees).
template <class Body>
void for_each_query(const AttentionSpace& space, const Body& body) {
  for (const Row& s : space.segments) {
    for (std::int64_t i = 0; i < s[1]; ++i) {
      std::vector<std::int64_t> keys;
      for (std::int64_t j = 0; j < s[3]; ++j) {
        const std::int64_t at = s[4] + i, key = s[5] + j;
        if ((!space.causal || key <= at) && (space.window == 0 || key > at - space.window)) keys.push_back(s[2] + j);
      }
      body(s[0] + i, keys);
    }
  }
}

// The distance of a visible pair, from their positions in the query row's segment.
inline double distance_of(const AttentionSpace& space, std::int64_t row, std::int64_t key) {
  for (const Row& s : space.segments) {
    if (row < s[0] || row >= s[0] + s[1]) continue;
    const std::int64_t p = s[4] + row - s[0], r = s[5] + key - s[2];
    return std::abs(static_cast<double>(p - r));
  }
  return std::numeric_limits<double>::quiet_NaN();
}

// The scores of the keys. derivatives, if given: by scale * q k.
inline std::vector<double> scores_of(const AttentionSpace& space, const std::vector<double>& q,
                                     const std::vector<double>& k, std::int64_t row, std::int64_t head,
                                     const std::vector<std::int64_t>& keys,
                                     std::vector<double>* derivatives = nullptr) {
  std::vector<double> out;
  for (const std::int64_t key : keys) {
    double sum = 0;
    const std::size_t a = space.query_at(row, head), b = space.key_at(key, head);
    for (std::size_t i = 0; i < static_cast<std::size_t>(space.head_dim); ++i) sum += q[a + i] * k[b + i];
    double score = sum * space.scale, derivative = 1;
    if (space.softcap > 0) {
      const double t = std::tanh(score / space.softcap);
      score = space.softcap * t;
      derivative = 1 - t * t;
    }
    if (!space.slopes.empty()) {
      score -= space.slopes[static_cast<std::size_t>(head)] * distance_of(space, row, key);
    }
    out.push_back(score);
    if (derivatives != nullptr) derivatives->push_back(derivative);
  }
  return out;
}

struct Attended {
  std::vector<double> o;    // [Tq, heads, D]
  std::vector<double> lse;  // [heads, Tq]
};
inline Attended attend(const AttentionSpace& space, const std::vector<double>& q, const std::vector<double>& k,
                       const std::vector<double>& v) {
  const auto rows = static_cast<std::int64_t>(q.size()) / (space.query_heads * space.head_dim);
  Attended out{std::vector<double>(q.size()), std::vector<double>(static_cast<std::size_t>(space.query_heads * rows),
                                                                  -std::numeric_limits<double>::infinity())};
  for_each_query(space, [&](std::int64_t row, const std::vector<std::int64_t>& keys) {
    if (keys.empty()) return;
    for (std::int64_t head = 0; head < space.query_heads; ++head) {
      const std::vector<double> scores = scores_of(space, q, k, row, head, keys);
      const double max = *std::max_element(scores.begin(), scores.end());
      double sum = 0;
      for (const double score : scores) sum += std::exp(score - max);
      const double lse = out.lse[static_cast<std::size_t>(head * rows + row)] = max + std::log(sum);
      double* o = &out.o[space.query_at(row, head)];
      for (std::size_t j = 0; j < keys.size(); ++j) {
        const double* value = &v[space.key_at(keys[j], head)];
        const double factor = space.factor ? space.factor(row, keys[j], head) : 1;
        for (std::int64_t i = 0; i < space.head_dim; ++i) o[i] += factor * std::exp(scores[j] - lse) * value[i];
      }
    }
  });
  return out;
}

}  // namespace hawser::ops::testing
