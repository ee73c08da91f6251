// The toy model on two or four tensor ranks.
#pragma once

#include <algorithm>

#include "models/rank_share.h"
#include "support/toy.h"

namespace hawser::testing {

// How two tensor ranks divide the model, besides its layers.
struct Division {
  bool vocabulary = false;  // of embedding and head, but not of classes
  bool sequence_parallel = false;
  bool one_plan = false;                     // the first rank plans for all
  int whole_attention = -1, whole_mlp = -1;  // the block whose attention, or MLP, each rank has all of
};

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

// The toy, with inner channels that two, four and eight ranks divide.
inline models::ModelDescription divisible(models::ModelDescription toy) {
  for (models::BlockDescription& block : toy.blocks) {
    if (block.mlp.inner % 8 != 0) block.mlp.inner = 40;
  }
  return toy;
}

inline models::RankShare share_of(const Division& division, int part, int parts) {
  return {.tensor = {.index = part, .count = parts},
          .modules = {.vocabulary = division.vocabulary},
          .sequence_parallel = division.sequence_parallel};
}

// comm::MeshSizes::kv_copies: there are fewer key-value heads than `parts` tensor ranks if it is more than 1.
inline int kv_copies(const models::ModelDescription& whole, int parts) {
  return std::max(1, parts / static_cast<int>(whole.blocks.front().attention.kv_heads));
}

// Part `part` of `parts`, with the layers that each rank has all of.
inline models::ModelDescription part_of(const models::ModelDescription& whole, int part, int parts,
                                        const Division& division) {
  models::ModelDescription d = models::rank_description(whole, share_of(division, part, parts));
  const auto block = [](auto& of, int b) -> auto& {
    return of.blocks.at(static_cast<std::size_t>(b));
  };
  if (const int b = division.whole_attention; b >= 0) {
    block(d, b).attention = block(whole, b).attention;
    block(d, b).attention.sliced = false;
  }
  if (const int b = division.whole_mlp; b >= 0) {
    block(d, b).mlp = block(whole, b).mlp;
    block(d, b).mlp.sliced = false;
  }
  return d;
}

inline models::ModelDescription half_of(const models::ModelDescription& whole, int part, const Division& division) {
  return part_of(whole, part, 2, division);
}

}  // namespace hawser::testing
