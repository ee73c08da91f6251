// Attention's forward in float64, for tests: the formulas of ops/attention/attention.h, without its tiles.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
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

// scale * q k for each of the keys.
inline std::vector<double> scores_of(const AttentionSpace& space, const std::vector<double>& q,
                                     const std::vector<double>& k, std::int64_t row, std::int64_t head,
                                     const std::vector<std::int64_t>& keys) {
  std::vector<double> out;
  for (const std::int64_t key : keys) {
    double sum = 0;
    const std::size_t a = space.query_at(row, head), b = space.key_at(key, head);
    for (std::size_t i = 0; i < static_cast<std::size_t>(space.head_dim); ++i) sum += q[a + i] * k[b + i];
    out.push_back(sum * space.scale);
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
        for (std::int64_t i = 0; i < space.head_dim; ++i) o[i] += std::exp(scores[j] - lse) * value[i];
      }
    }
  });
  return out;
}

}  // namespace hawser::ops::testing
