// The toy model on two tensor ranks.
#pragma once

#include "support/toy.h"

namespace hawser::testing {

// How two tensor ranks divide the model, besides its layers.
struct Division {
  bool vocabulary = false;         // of embedding and head: 34 and 33 of 67, and a row of padding
  bool sequence_parallel = false;  // needs `vocabulary`
  bool one_plan = false;           // the first rank plans for all: slices must be equal, 19 of 38 inner channels
};

// Part `part` of two: two of four heads, one of two key-value heads, and 19 or 18 of 37 inner channels, or half of 38.
inline models::ModelDescription half_of(models::ModelDescription d, int part, const Division& division) {
  if (division.vocabulary) {
    const std::int64_t total = d.embedding.vocabulary, first = (total + 1) / 2;
    d.embedding.vocabulary_part = d.head.vocabulary_part = {.begin = part == 0 ? 0 : first, .total = total};
    d.embedding.vocabulary = d.head.vocabulary = first;
  }
  for (models::BlockDescription& block : d.blocks) {
    nn::AttentionConfig& a = block.attention;
    a.heads_part = {.begin = part * a.heads / 2, .total = a.heads};
    a.kv_heads_part = {.begin = part * a.kv_heads / 2, .total = a.kv_heads};
    a.heads /= 2;
    a.kv_heads /= 2;
    nn::MlpConfig& m = block.mlp;
    const std::int64_t first = (m.inner + 1) / 2;
    m.inner_part = {.begin = part == 0 ? 0 : first, .total = m.inner};
    m.inner = part == 0 ? first : m.inner - first;
  }
  return d;
}

}  // namespace hawser::testing
