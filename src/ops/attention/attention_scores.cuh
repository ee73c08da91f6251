// What Hawser's own attention kernels share: which keys a query sees, scores from dot products, and dropout.
#pragma once

#include "ops/attention/attention.h"
#include "ops/cuda/kernel.cuh"

namespace hawser::ops::cuda {

// [begin, end)
struct Range {
  std::int64_t begin, end;
};

__device__ __forceinline__ std::int64_t clamp(std::int64_t x, std::int64_t low, std::int64_t high) {
  return x < low ? low : x > high ? high : x;
}

struct Mask {
  const std::int32_t* segments;  // [N, 6]
  const std::int32_t* count;
  std::int64_t rows;  // N
  bool causal;
  std::int64_t window;

  // Keys that query row i sees; both as indices in the segment.
  __device__ Range keys(const std::int32_t* s, std::int64_t i) const {
    const std::int64_t at = static_cast<std::int64_t>(s[4]) + i - s[5], all = s[3];
    return {window > 0 ? clamp(at - window + 1, 0, all) : 0, causal ? clamp(at + 1, 0, all) : all};
  }
  // Query rows that see key j; both as indices in the segment.
  __device__ Range queries(const std::int32_t* s, std::int64_t j) const {
    const std::int64_t at = static_cast<std::int64_t>(s[5]) + j - s[4], all = s[1];
    return {causal ? clamp(at, 0, all) : 0, window > 0 ? clamp(at + window, 0, all) : all};
  }
};

// Scores, from dot products of q and k.
struct Scores {
  float scale, cap;     // cap 0: none
  const float* slopes;  // [Hq]; null: none

  struct Of {
    float factor, x, bias;  // the score: factor * x + bias
    float slope;            // d score / d (scale * dot)

    __device__ __forceinline__ float score() const { return fmaf(factor, x, bias); }
    // score - lse. Fused multiply-adds are explicit: a call without caps and biases has the bits of a kernel that has
    // neither.
    __device__ __forceinline__ float less(float lse) const { return bias == 0 ? fmaf(factor, x, -lse) : score() - lse; }
  };
  // distance: p - r, of the positions.
  __device__ __forceinline__ Of of(float dot, std::int64_t h, std::int64_t distance) const {
    Of out{scale, dot, 0.0f, 1.0f};
    if (cap > 0) {
      const float t = tanhf(scale * dot / cap);
      out = {cap, t, 0.0f, 1.0f - t * t};
    }
    if (slopes != nullptr) out.bias = -slopes[h] * fabsf(static_cast<float>(distance));
    return out;
  }
};

// Factors of the probabilities (AttentionDropout).
struct Dropping {
  PhiloxKey key;
  std::int64_t first_head;
  const std::int32_t *step, *queries, *keys;
  std::uint64_t below;  // u < p exactly if word < p * 2^32; 0: no dropout
  float kept;           // 1 / (1 - p)

  __device__ __forceinline__ PhiloxKey of_head(std::int64_t h) const {
    return below > 0 ? attention_dropout_key(key, first_head + h) : PhiloxKey{};
  }
  // head: of_head(); t, row: of q and k.
  __device__ __forceinline__ float of(PhiloxKey head, std::int64_t t, std::int64_t row) const {
    if (below == 0) return 1.0f;
    const auto key_row = static_cast<std::uint32_t>(keys[2 * row + 1]);
    const PhiloxWords words = philox(attention_dropout_counter(key_row, queries + 2 * t, *step), head);
    std::uint32_t word = words[0];
#pragma unroll
    for (std::uint32_t i = 1; i < 4; ++i) word = key_row % 4 == i ? words[i] : word;
    return word < below ? 0.0f : kept;
  }
};

// p - r of query row i and key row j, as indices in the segment.
__device__ __forceinline__ std::int64_t distance_of(const std::int32_t* s, std::int64_t i, std::int64_t j) {
  return static_cast<std::int64_t>(s[4]) + i - s[5] - j;
}

template <class T>
Rows2<const T> reading(const TensorView& view) {
  const auto rows = rows2<T>(view);
  return {rows.data, rows.count, rows.columns, rows.stride};
}

inline Mask mask_of(const AttentionCall& call) {
  return {call.segments.data<std::int32_t>(), call.segment_count.data<std::int32_t>(), call.segments.size(0),
          call.causal, call.window};
}

inline Scores scores_of(const AttentionCall& call) {
  return {static_cast<float>(call.scale), static_cast<float>(call.softcap),
          call.slopes.empty() ? nullptr : call.slopes.data<float>()};
}

inline Dropping dropping_of(const AttentionCall& call) {
  const AttentionDropout& d = call.dropout;
  if (d.probability == 0) return {};
  return {d.key,
          d.first_head,
          d.step.data<std::int32_t>(),
          d.query_ids.data<std::int32_t>(),
          d.key_ids.data<std::int32_t>(),
          static_cast<std::uint64_t>(std::ceil(d.probability * 0x1p32)),
          static_cast<float>(1.0 / (1.0 - d.probability))};
}

}  // namespace hawser::ops::cuda
