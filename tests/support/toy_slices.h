// The toy model on two or four tensor ranks.
#pragma once

#include <algorithm>

#include "support/toy.h"

namespace hawser::testing {

// How two tensor ranks divide the model, besides its layers.
struct Division {
  bool vocabulary = false;  // of embedding and head, but not of classes: 34 and 33 of 67, and a row of padding
  bool sequence_parallel = false;
  bool one_plan = false;  // the first rank plans for all: slices must be equal, 19 of 38 inner channels
  int whole_attention = -1, whole_mlp = -1;  // the block whose attention, or MLP, each rank has all of
};

// Key-value heads that are fewer than tensor ranks are on several of them.
inline int kv_copies(const models::ModelDescription& whole, int parts) {
  return std::max(1, parts / static_cast<int>(whole.blocks.front().attention.kv_heads));
}

// The toy with one tensor of all q, k and v in its files, with the rows of each head together, as in GPT-NeoX.
inline models::ModelDescription with_fused_qkv(models::ModelDescription d, std::int64_t kv_heads = 2) {
  for (models::BlockDescription& block : d.blocks) {
    nn::AttentionConfig& a = block.attention;
    a.q = a.k = a.v = "";
    a.kv_heads = kv_heads;
    const std::int64_t of_group = a.heads / kv_heads * a.head_dim;
    for (std::int64_t head = 0; head < kv_heads; ++head) {
      a.qkv_rows.push_back({head * of_group, of_group});
      for (const std::int64_t part : {0, 1}) {
        a.qkv_rows.push_back({a.q_size() + part * a.kv_size() + head * a.head_dim, a.head_dim});
      }
    }
  }
  return d;
}

// Part `part` of `parts`, which divide four heads and, if not two, the inner channels; of 37, two have 19 and 18.
inline models::ModelDescription part_of(models::ModelDescription d, int part, int parts, const Division& division) {
  if (division.vocabulary) {
    const std::int64_t total = d.embedding.vocabulary, own = (total + parts - 1) / parts;
    d.embedding.vocabulary_slice = {.begin = part * own, .total = total};
    d.embedding.vocabulary = own;
    if (!d.head.classifies()) d.head.vocabulary_slice = d.embedding.vocabulary_slice, d.head.vocabulary = own;
  }
  const int copies = kv_copies(d, parts);
  for (int b = 0; b < static_cast<int>(d.blocks.size()); ++b) {
    models::BlockDescription& block = d.blocks[static_cast<std::size_t>(b)];
    nn::AttentionConfig& a = block.attention;
    nn::MlpConfig& m = block.mlp;
    a.sliced = b != division.whole_attention;
    m.sliced = b != division.whole_mlp;
    if (a.sliced) {
      a.heads_slice = {.begin = part * a.heads / parts, .total = a.heads};
      a.kv_heads_slice = {.begin = part / copies * a.kv_heads * copies / parts, .total = a.kv_heads};
      a.heads /= parts;
      a.kv_heads = a.kv_heads * copies / parts;
      a.kv_copies = copies;
    }
    if (m.sliced) {
      const std::int64_t begin = (m.inner * part + parts - 1) / parts, end = (m.inner * (part + 1) + parts - 1) / parts;
      m.inner_slice = {.begin = begin, .total = m.inner};
      m.inner = end - begin;
    }
  }
  return d;
}

inline models::ModelDescription half_of(models::ModelDescription d, int part, const Division& division) {
  return part_of(std::move(d), part, 2, division);
}

}  // namespace hawser::testing
